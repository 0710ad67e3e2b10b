"""From a node's profile to its schedulers: the parts that `node.build` puts together, without an engine."""

from __future__ import annotations

from dataclasses import replace

from baton.core.kvcache import KvCache
from baton.core.load import Role
from baton.core.model import PROTOCOL_VERSION, Fingerprint
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.node.core import CoreLimits, NodeCore
from baton.node.samples import Sample
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler
from baton.router.events import NodeInfo
from baton.sim.cost import StepWork
from baton.sim.sampling import VOCAB_SIZE
from baton.sim.spec import ClusterSpec, NodeSpec

MIN_PREFILL_TOKENS = 64  # as in node.build: what a full decode batch leaves to prompts
FINGERPRINT = Fingerprint(
    protocol=str(PROTOCOL_VERSION),
    architecture="simulated",
    weights="simulated",
    tokenizer="simulated",
    geometry="simulated",
    quantization="none",
    dtype="none",
    kernels="none",
)


def node_core(spec: NodeSpec, cluster: ClusterSpec, role: Role) -> NodeCore:
    profile = spec.profile
    revision = FINGERPRINT.weights
    kv = KvCache(profile.num_blocks, profile.block_size, prefix_caching=profile.prefix_caching)
    prefill = PrefillScheduler(kv, _prefill_limits(spec, cluster, role), revision)
    limits = DecodeLimits(
        max_model_len=profile.max_model_len,
        max_running=profile.max_running,
        chunk_tokens=profile.chunk_tokens,
    )
    decode = DecodeScheduler(kv, limits, revision, prefill.reclaim)
    sink_limits = SinkLimits(
        max_model_len=profile.max_model_len,
        vocab_size=VOCAB_SIZE,
        max_waiting=cluster.max_reservations,
        lease_s=cluster.lease_s,
    )
    sink = HandoffSink(kv, sink_limits, revision)
    budget = max(profile.max_batch_tokens, profile.max_running + MIN_PREFILL_TOKENS)
    by_latency = not cluster.fcfs if cluster.by_latency is None else cluster.by_latency
    limits_of_steps = CoreLimits(budget, profile.max_running, by_latency=by_latency)
    return NodeCore(kv, prefill, decode, sink, role, limits_of_steps)


def _prefill_limits(spec: NodeSpec, cluster: ClusterSpec, role: Role) -> PrefillLimits:
    profile = spec.profile
    limits = PrefillLimits(
        max_model_len=profile.max_model_len,
        max_batch_tokens=profile.max_batch_tokens,
        chunk_tokens=profile.chunk_tokens,
        max_waiting=profile.max_waiting,
        max_exporting_share=0.5 if role is Role.BOTH else 1.0,
        token_s=profile.prompt_token_s,
    )
    return (
        replace(limits, order="fcfs", priority_s=0.0, enough_tokens=profile.max_batch_tokens)
        if cluster.fcfs
        else limits
    )


def node_info(spec: NodeSpec, incarnation: str, core: NodeCore) -> NodeInfo:
    profile = spec.profile
    return NodeInfo(
        node_id=spec.node_id,
        incarnation=incarnation,
        address=f"{spec.node_id}:1",
        host_id=spec.node_id,
        fingerprint=FINGERPRINT,
        block_size=profile.block_size,
        num_blocks=profile.num_blocks,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        max_model_len=profile.max_model_len,
        load=core.load(),
        step_tokens=core.prefill.step_tokens,
    )


def tried(spec: NodeSpec) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Steps of several sizes, prompts' and decode's, as a node measures them when it starts."""
    profile, step_s = spec.profile, spec.profile.cost.step_s
    prompts = [min(tokens, profile.max_batch_tokens) for tokens in (64, 256, 512, 1024)] * 3
    batches = [(rows, rows * tokens) for rows in (1, 4, 16, 64) for tokens in (128, 1024)] * 2
    return (
        tuple((n, 0, spec.pace * step_s(StepWork(n, n * n / 2, 1, 0, 0))) for n in prompts),
        tuple(
            (rows, context, spec.pace * step_s(StepWork(0, 0.0, 0, rows, context)))
            for rows, context in batches
        ),
    )
