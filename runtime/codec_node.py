"""What nodes say of themselves, between domain types and the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from baton.core.errors import InvalidArgument
from baton.core.load import LoadReport
from baton.core.model import Fingerprint, ModelInfo
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import registry_pb2 as pb
from baton.runtime import checks
from baton.runtime.codec import role_from_proto, role_to_proto

MAX_DIGEST_CHARS = 1024
MAX_SAMPLES = 4096
MAX_ARRIVED = 65536
MAX_EOS_IDS = 1024
MAX_ADDRESS_CHARS = 512

_LAYOUT_INTS = (
    "block_size",
    "layer_start",
    "layer_end",
    "head_start",
    "head_end",
    "head_dim",
    "num_blocks",
)
_LOAD_COUNTS = (
    "seq",
    "draining",
    "waiting",
    "running",
    "exporting",
    "reserved",
    "waiting_tokens",
    "waiting_work",
    "context_tokens",
    "blocks_total",
    "blocks_free",
    "block_size",
    "quarantined",
    "max_running",
    "steps",
)
_FINGERPRINT = (
    "protocol",
    "architecture",
    "weights",
    "tokenizer",
    "geometry",
    "quantization",
    "dtype",
    "kernels",
)


class LayoutLike(Protocol):
    """Any object with kv_transfer.layout.KvLayout's fields (this package may not import that one)."""

    @property
    def block_size(self) -> int: ...
    @property
    def layer_start(self) -> int: ...
    @property
    def layer_end(self) -> int: ...
    @property
    def head_start(self) -> int: ...
    @property
    def head_end(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def num_blocks(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """A KvLayout's fields as plain values; `KvLayout(**dataclasses.asdict(facts))` where one is wanted."""

    block_size: int
    layer_start: int
    layer_end: int
    head_start: int
    head_end: int
    head_dim: int
    dtype: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A node as it announces itself. address and bus_endpoint: how routers reach it ("" : no bus).
    step_tokens: the most of prompts that one engine step computes; 0: not said."""

    node_id: str
    incarnation: str
    address: str
    bus_endpoint: str
    host_id: str
    pid: int
    model: ModelInfo
    layout: LayoutFacts
    kv_bytes_per_token: int
    load: LoadReport
    step_tokens: int = 0


def layout_to_proto(layout: LayoutLike) -> common.KvLayout:
    return common.KvLayout(
        dtype=layout.dtype,
        **{name: getattr(layout, name) for name in _LAYOUT_INTS},
    )


def layout_from_proto(msg: common.KvLayout) -> LayoutFacts:
    """InvalidArgument: an empty or reversed range, or a size of zero."""
    for name in ("block_size", "head_dim", "num_blocks"):
        checks.whole(f"layout.{name}", getattr(msg, name), 1, 2**31 - 1)
    for axis in ("layer", "head"):
        start, end = getattr(msg, f"{axis}_start"), getattr(msg, f"{axis}_end")
        if not start < end <= 2**20:
            raise InvalidArgument(f"[{start}, {end}) is not a range", field=f"layout.{axis}_end")
    return LayoutFacts(
        dtype=checks.printable("layout.dtype", msg.dtype, most=32, least=1),
        **{name: getattr(msg, name) for name in _LAYOUT_INTS},
    )


def fingerprint_to_proto(fingerprint: Fingerprint) -> common.Fingerprint:
    return common.Fingerprint(**{name: getattr(fingerprint, name) for name in _FINGERPRINT})


def fingerprint_from_proto(msg: common.Fingerprint) -> Fingerprint:
    return Fingerprint(
        **{
            name: checks.text(f"fingerprint.{name}", getattr(msg, name), most=MAX_DIGEST_CHARS)
            for name in _FINGERPRINT
        }
    )


def model_to_proto(model: ModelInfo) -> common.ModelInfo:
    return common.ModelInfo(
        name=model.name,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        fingerprint=fingerprint_to_proto(model.fingerprint),
    )


def model_from_proto(msg: common.ModelInfo) -> ModelInfo:
    vocab_size = checks.whole("model.vocab_size", msg.vocab_size, 1, 2**31 - 1)
    checks.count("model.eos_token_ids", msg.eos_token_ids, MAX_EOS_IDS)
    return ModelInfo(
        name=checks.text("model.name", msg.name, most=MAX_ADDRESS_CHARS),
        vocab_size=vocab_size,
        max_model_len=checks.whole("model.max_model_len", msg.max_model_len, 1, 2**31 - 1),
        eos_token_ids=tuple(
            checks.whole("model.eos_token_ids", token, 0, vocab_size - 1) for token in msg.eos_token_ids
        ),
        fingerprint=fingerprint_from_proto(msg.fingerprint),
    )


def load_to_proto(load: LoadReport) -> pb.LoadReport:
    return pb.LoadReport(
        role=role_to_proto(load.role),
        prefill_samples=_samples_to_proto(load.prefill_samples),
        decode_samples=_samples_to_proto(load.decode_samples),
        transfer_samples=[pb.CostSample(x=x, seconds=s) for x, s in load.transfer_samples[-MAX_SAMPLES:]],
        age_s=load.age_s,
        arrived=load.arrived[-MAX_ARRIVED:],
        **{name: getattr(load, name) for name in _LOAD_COUNTS},
    )


def load_from_proto(msg: pb.LoadReport) -> LoadReport:
    """InvalidArgument: unknown role, times that are not finite, more free blocks than there are."""
    for name in ("prefill_samples", "decode_samples", "transfer_samples"):
        checks.count(f"load.{name}", getattr(msg, name), MAX_SAMPLES)
    checks.count("load.arrived", msg.arrived, MAX_ARRIVED)
    checks.whole("load.blocks_free", msg.blocks_free, 0, msg.blocks_total)
    return LoadReport(
        role=role_from_proto(msg.role),
        prefill_samples=_samples_from_proto("load.prefill_samples", msg.prefill_samples),
        decode_samples=_samples_from_proto("load.decode_samples", msg.decode_samples),
        transfer_samples=tuple(
            (x, s) for x, _, s in _samples_from_proto("load.transfer_samples", msg.transfer_samples)
        ),
        age_s=checks.finite("load.age_s", msg.age_s),
        arrived=tuple(msg.arrived),
        **{name: getattr(msg, name) for name in _LOAD_COUNTS},
    )


def registration_to_proto(facts: Registration) -> pb.Registration:
    return pb.Registration(
        node_id=facts.node_id,
        incarnation=facts.incarnation,
        address=facts.address,
        bus_endpoint=facts.bus_endpoint,
        host_id=facts.host_id,
        pid=facts.pid,
        model=model_to_proto(facts.model),
        layout=layout_to_proto(facts.layout),
        kv_bytes_per_token=facts.kv_bytes_per_token,
        load=load_to_proto(facts.load),
        step_tokens=facts.step_tokens,
    )


def registration_from_proto(msg: pb.Registration) -> Registration:
    """InvalidArgument names the field that is missing or out of range."""
    return Registration(
        node_id=checks.printable("node_id", msg.node_id, least=1),
        incarnation=checks.printable("incarnation", msg.incarnation, least=1),
        address=checks.printable("address", msg.address, most=MAX_ADDRESS_CHARS, least=1),
        bus_endpoint=checks.printable("bus_endpoint", msg.bus_endpoint, most=MAX_ADDRESS_CHARS),
        host_id=checks.printable("host_id", msg.host_id, most=MAX_ADDRESS_CHARS),
        pid=msg.pid,
        model=model_from_proto(msg.model),
        layout=layout_from_proto(msg.layout),
        kv_bytes_per_token=checks.whole("kv_bytes_per_token", msg.kv_bytes_per_token, 1, 2**40),
        load=load_from_proto(msg.load),
        step_tokens=msg.step_tokens,
    )


def _samples_to_proto(samples: tuple[tuple[int, int, float], ...]) -> list[pb.CostSample]:
    return [pb.CostSample(x=x, y=y, seconds=s) for x, y, s in samples[-MAX_SAMPLES:]]


def _samples_from_proto(field: str, messages: Iterable[pb.CostSample]) -> tuple[tuple[int, int, float], ...]:
    return tuple((msg.x, msg.y, checks.finite(field, msg.seconds)) for msg in messages)
