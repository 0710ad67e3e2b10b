"""From a start message to the parts of a node: model, pool, transports, schedulers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from baton.core.cascade import CascadeCost
from baton.core.errors import InvalidArgument
from baton.core.kvcache import KvCache
from baton.core.load import Role
from baton.core.model import ModelInfo
from baton.decode_node.limits import DecodeLimits
from baton.decode_node.scheduler import DecodeScheduler
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.engine.torch_runner import TorchRunner
from baton.kv_transfer.api import KvTransport, Pool
from baton.kv_transfer.handoff_sink import HandoffSink, SinkLimits
from baton.kv_transfer.layout import KvLayout
from baton.kv_transfer.segment import SharedPool
from baton.kv_transfer.shm import ShmTransport
from baton.kv_transfer.tcp.sockets import TcpOptions
from baton.kv_transfer.tcp.transport import TcpTransport
from baton.node.core import CoreLimits, NodeCore
from baton.prefill_node.limits import PrefillLimits
from baton.prefill_node.scheduler import PrefillScheduler
from baton.runtime.child import NodeStart
from baton.runtime.config import EngineConfig as EngineSettings

MIN_PREFILL_TOKENS = 64
# What one more shared prefix costs in a layer's attention, as bytes read meanwhile. Of a CPU it was measured:
# two rows gain from the third block of 24 KiB on. Of a GPU it is an estimate: the microsecond or so that one
# more kernel takes to start, at some terabytes per second.
CPU_LEVEL_BYTES = 64 << 10
GPU_LEVEL_BYTES = 4 << 20


@dataclass(slots=True)
class Parts:
    """Everything of a node that is not asyncio. `close` gives the pool's memory back."""

    incarnation: str
    loaded: LoadedModel
    info: ModelInfo
    layout: KvLayout
    runner: TorchRunner
    core: NodeCore
    transports: dict[str, KvTransport]
    shared: SharedPool | None
    settings: EngineSettings

    def close(self) -> None:
        for transport in self.transports.values():
            transport.close()
        if self.shared is not None:
            self.shared.close()


def build(start: NodeStart) -> Parts:
    """Blocking: loads the model. BatonError says what is wrong with the model, the pool or the ports."""
    config = start.config
    settings = config.nodes(start.role).engine
    name = config.name
    loaded = load(
        EngineConfig(
            model=config.model,
            dtype=settings.dtype,
            quantization=settings.quantization,
            kv_dtype=settings.kv_dtype,
            backend=settings.backend,
            device=start.device,
            threads=start.threads,
            cpus=start.cpus,
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
        )
    )
    incarnation = secrets.token_hex(8)
    layout = _layout(loaded, _num_blocks(loaded, settings))
    shared, memory = None, None
    if "shm" in config.transfer.kinds:
        shared = SharedPool.create(layout.pool_bytes, incarnation)
        memory = shared.tensor(layout)
    runner = loaded.runner(layout.num_blocks, memory, name)
    cascade = _cascade_cost(loaded, layout) if settings.cascade else None
    core = _core(start, settings, runner.info, layout.num_blocks, cascade)
    transports = _transports(start, incarnation, shared)
    for transport in transports.values():
        transport.register(Pool(runner.pool.tensor, layout))
    return Parts(incarnation, loaded, runner.info, layout, runner, core, transports, shared, settings)


def _num_blocks(loaded: LoadedModel, settings: EngineSettings) -> int:
    """Blocks of the pool, the null block included."""
    if settings.num_blocks is not None:
        return settings.num_blocks + 1
    block_bytes = loaded.kv_shape(1).block_bytes
    pool_bytes = settings.pool_bytes or 0
    if pool_bytes < 2 * block_bytes:
        raise InvalidArgument(
            f"{pool_bytes} bytes hold no KV block of {block_bytes} bytes beside the null block",
            field="engine.kv_memory",
        )
    return pool_bytes // block_bytes


def _layout(loaded: LoadedModel, num_blocks: int) -> KvLayout:
    return KvLayout(
        block_size=loaded.config.block_size,
        layer_start=0,
        layer_end=loaded.layers,
        head_start=0,
        head_end=loaded.kv_heads,
        head_dim=loaded.head_dim,
        dtype=str(loaded.config.kv_torch_dtype).removeprefix("torch."),
        num_blocks=num_blocks,
    )


def _cascade_cost(loaded: LoadedModel, layout: KvLayout) -> CascadeCost:
    """On a CPU a group's queries are carried along while its keys are read; on a GPU partial results are
    merged, each about as large as 16 tokens' KV."""
    if loaded.config.torch_device.type == "cpu":
        return CascadeCost(layout.record_bytes, CPU_LEVEL_BYTES)
    return CascadeCost(layout.record_bytes, GPU_LEVEL_BYTES, 16 * layout.record_bytes // layout.block_size)


def _core(
    start: NodeStart,
    settings: EngineSettings,
    info: ModelInfo,
    num_blocks: int,
    cascade: CascadeCost | None,
) -> NodeCore:
    transfer = start.config.transfer
    revision = info.fingerprint.weights
    kv = KvCache(num_blocks, settings.block_size, prefix_caching=settings.prefix_caching)
    prefill = PrefillScheduler(
        kv,
        PrefillLimits(
            max_model_len=info.max_model_len,
            max_batch_tokens=settings.max_batch_tokens,
            chunk_tokens=settings.chunk_tokens,
            max_waiting=settings.max_waiting,
            order=start.config.router.order,
            # Where decode shares the pool, waiting exports must leave it room to grow.
            max_exporting_share=0.5 if start.role is Role.BOTH else 1.0,
        ),
        revision,
    )
    decode = DecodeScheduler(
        kv,
        DecodeLimits(
            max_model_len=info.max_model_len,
            max_running=settings.max_running,
            chunk_tokens=settings.chunk_tokens,
        ),
        revision,
        prefill.reclaim,
    )
    sink = HandoffSink(
        kv,
        SinkLimits(
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            max_waiting=transfer.max_waiting,
            lease_s=transfer.lease_s,
        ),
        revision,
    )
    # A full decode batch must leave prompts a share of the step.
    budget = max(settings.max_batch_tokens, settings.max_running + MIN_PREFILL_TOKENS)
    limits = CoreLimits(budget, settings.max_running, cascade)
    return NodeCore(kv, prefill, decode, sink, start.role, limits)


def _transports(start: NodeStart, incarnation: str, shared: SharedPool | None) -> dict[str, KvTransport]:
    transports: dict[str, KvTransport] = {}
    for kind in start.config.transfer.kinds:
        if kind == "shm":
            transports[kind] = ShmTransport(shared)
        else:
            options = TcpOptions(host=start.host, advertise=start.advertise_host or "")
            transports[kind] = TcpTransport(incarnation, options)
    return transports
