"""What a simulated cluster is made of. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton.core.load import Role
from baton.sim.cost import StepCost, StepWork
from baton.sim.host import Beside


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of node with a model on it: how long its work takes, what it holds, where its limits are.

    noise: relative standard deviation of a step's time. write_s: what a KV write costs besides its bytes.
    nic_bytes_s: bytes per second that the node can send, and as many that it can receive. gpus: devices that
    one node takes, for figures per device. beside: what nodes of one host do to each other; None: nothing.
    The limits are those of `runtime.config`, by the same names.
    """

    name: str
    cost: StepCost
    kv_bytes_per_token: int
    num_blocks: int
    nic_bytes_s: float
    write_s: float = 0.0
    block_size: int = 16
    max_model_len: int = 32768
    max_batch_tokens: int = 2048
    chunk_tokens: int = 2048
    max_running: int = 256
    max_waiting: int = 1024
    prefix_caching: bool = True
    noise: float = 0.0
    gpus: float = 1.0
    beside: Beside | None = None

    @property
    def prompt_token_s(self) -> float:
        """Seconds per prompt token of a usual chunk."""
        tokens = min(512, self.chunk_tokens)
        return self.cost.step_s(StepWork(tokens, tokens * tokens / 2, 1, 0, 0)) / tokens


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """pace: how much slower than its profile this one is. host: nodes that name the same one share it; "":
    one of its own."""

    node_id: str
    role: Role
    profile: Profile
    pace: float = 1.0
    host: str = ""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """latency_s: of a message between any two processes, one way; client_s: between a client and the router.
    jitter: each message is late by up to that share of its latency more. loss: share of messages that must be
    sent again, `resend_s` later; streams keep their order. fenced: whether a target can shut out a writer
    (TCP), or must wait for its word (shared memory). detect_s: how long a silent peer goes unnoticed."""

    latency_s: float = 0.0002
    client_s: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    resend_s: float = 0.2
    fenced: bool = True
    detect_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """report_s: the least time between two load reports of a node; report_samples: measurements of each
    kind in one, at most. calibrated: nodes try steps of several sizes when they
    start, and tell of them in their first report. fcfs: prefill nodes serve prompts in the
    order in which they came, as the published policies assume. lease_s, max_reservations: of hand-offs."""

    nodes: tuple[NodeSpec, ...]
    network: NetworkSpec = field(default_factory=NetworkSpec)
    report_s: float = 0.02
    report_samples: int = 64
    calibrated: bool = False
    fcfs: bool = False
    by_latency: bool | None = None  # whether steps are sized to keep decode's targets; None: unless fcfs
    lease_s: float = 10.0
    max_reservations: int = 256

    @classmethod
    def pools(
        cls,
        profile: Profile,
        prefill: int = 0,
        decode: int = 0,
        both: int = 0,
        decode_profile: Profile | None = None,
    ) -> ClusterSpec:
        """Nodes p0.., d0.., b0.. of one profile, or of two."""
        second = decode_profile or profile
        nodes = [NodeSpec(f"p{i}", Role.PREFILL, profile) for i in range(prefill)]
        nodes += [NodeSpec(f"d{i}", Role.DECODE, second) for i in range(decode)]
        nodes += [NodeSpec(f"b{i}", Role.BOTH, profile) for i in range(both)]
        return cls(tuple(nodes))

    def with_network(self, network: NetworkSpec) -> ClusterSpec:
        return replace(self, network=network)

    @property
    def gpus(self) -> float:
        return sum(node.profile.gpus for node in self.nodes)


def ids(nodes: Sequence[NodeSpec]) -> tuple[str, ...]:
    return tuple(node.node_id for node in nodes)
