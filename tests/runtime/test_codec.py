"""What goes onto the wire comes back equal; what comes from elsewhere out of range names its field."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.batch import LOGPROB_FLOOR, TokenLogprobs
from baton.core.errors import (
    BatonError,
    Code,
    InternalError,
    InvalidArgument,
    ResourceExhausted,
    error_for,
)
from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint, ModelInfo
from baton.core.request import FinishReason, Request, SamplingParams, Slo
from baton.proto.v1 import common_pb2 as pb
from baton.runtime import codec, codec_node
from baton.runtime.codec_node import LayoutFacts, Registration

ids = st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False)
optional_count = st.none() | st.integers(0, 100)

sampling = st.builds(
    SamplingParams,
    temperature=finite,
    top_k=st.integers(-1, 2**31),
    top_p=finite,
    min_p=finite,
    repetition_penalty=finite,
    presence_penalty=finite,
    frequency_penalty=finite,
    logit_bias=st.dictionaries(st.integers(0, 2**40), finite, max_size=4).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    min_tokens=st.integers(0, 100),
    stop_token_ids=ids,
    bad_token_ids=ids,
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    logprobs=optional_count,
    prompt_logprobs=optional_count,
)
requests = st.builds(
    Request,
    id=st.from_regex(r"[a-z0-9/-]{1,40}", fullmatch=True),
    prompt_ids=ids,
    sampling=sampling,
    max_tokens=st.integers(1, 2**31 - 1),
    eos_token_ids=ids,
    attempt=st.integers(0, 100),
    output_ids=ids,
    slo=st.builds(Slo, ttft_s=st.none() | st.floats(0.001, 1e6), tpot_s=st.none() | st.floats(0.001, 1e6)),
    priority=st.integers(-(2**31), 2**31 - 1),
    salt=st.text(max_size=20),
    timeout_s=st.none() | st.floats(0, 1e6),
)


@given(requests)
def test_request_round_trip(request_: Request) -> None:
    wire = codec.request_to_proto(request_).SerializeToString()
    assert codec.request_from_proto(pb.NodeRequest.FromString(wire)) == request_


def test_fields_left_out_take_the_documented_defaults() -> None:
    assert codec.sampling_from_proto(pb.SamplingParams()) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("id", {"id": ""}),
        ("id", {"id": "line\nbreak"}),
        ("id", {"id": "x" * 10_000}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 2**32 - 1}),
        ("salt", {"salt": "s" * 5000}),
        ("timeout_s", {"timeout_s": math.nan}),
        ("timeout_s", {"timeout_s": -1.0}),
        ("slo.ttft_s", {"slo": pb.Slo(ttft_s=math.inf)}),
        ("slo.tpot_s", {"slo": pb.Slo(tpot_s=0.0)}),
    ],
)
def test_bad_requests_name_the_field(field: str, bad: dict[str, object]) -> None:
    message = pb.NodeRequest(**{"id": "a", "max_tokens": 1, "prompt_ids": [1]} | bad)
    with pytest.raises(InvalidArgument) as caught:
        codec.request_from_proto(message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("stop_token_ids", {"stop_token_ids": [2**31]}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("bad_token_ids", {"bad_token_ids": [2**63 - 1]}),
        ("logit_bias", {"logit_bias": {331: 1.0}}),
        ("logit_bias[0]", {"logit_bias": {0: 1e9}}),
        ("logit_bias[0]", {"logit_bias": {0: math.nan}}),
        ("top_k", {"top_k": -2}),
        ("seed", {"seed": -(2**63)}),
    ],
)
def test_bad_sampling_survives_the_codec_and_fails_validation(field: str, bad: dict[str, object]) -> None:
    message = pb.NodeRequest(id="a", max_tokens=1, prompt_ids=[1], sampling=pb.SamplingParams(**bad))
    request = codec.request_from_proto(message)
    with pytest.raises(InvalidArgument) as caught:
        request.validate(vocab_size=331, max_model_len=64)
    assert caught.value.field == field


@given(st.sampled_from(FinishReason), st.sampled_from(Role))
def test_enums(reason: FinishReason, role: Role) -> None:
    assert codec.reason_from_proto(codec.reason_to_proto(reason)) is reason
    assert codec.role_from_proto(codec.role_to_proto(role)) is role


def test_unknown_enums_are_refused() -> None:
    for value in (0, 99):
        with pytest.raises(InvalidArgument):
            codec.reason_from_proto(value)
        with pytest.raises(InvalidArgument):
            codec.role_from_proto(value)


def test_logprobs_are_always_finite() -> None:
    entry = TokenLogprobs(1, -math.inf, ((2, math.nan), (3, -0.5), (4, 1e-7)))
    (back,) = codec.logprobs_from_proto(codec.logprobs_to_proto([entry]))
    assert back == TokenLogprobs(1, LOGPROB_FLOOR, ((2, LOGPROB_FLOOR), (3, -0.5), (4, 0.0)))


@pytest.mark.parametrize("code", list(Code))
def test_faults(code: Code) -> None:
    error = error_for(code, "what", field="where", retry_after_s=0.5)
    back = codec.fault_from_proto(codec.fault_to_proto(error))
    assert (type(back), back.message, back.field, back.retry_after_s) == (type(error), "what", "where", 0.5)


def test_fault_of_an_unknown_code_is_internal() -> None:
    assert isinstance(codec.fault_from_proto(pb.Fault(code="NEW", message="m")), InternalError)
    assert isinstance(codec.fault_from_proto(pb.Fault(code="RESOURCE_EXHAUSTED")), ResourceExhausted)
    assert issubclass(ResourceExhausted, BatonError)


def registration() -> Registration:
    load = LoadReport(
        seq=2**40,
        role=Role.BOTH,
        draining=True,
        blocks_total=10,
        blocks_free=3,
        prefill_samples=((1, 2, 0.5),),
        decode_samples=((3, 4, 0.25),),
        transfer_samples=((2**33, 0.125),),
        arrived=("router-0-1", "router-0-2"),
    )
    model = ModelInfo(
        "m", 331, 64, (2, 5), Fingerprint("1", "llama", "w", "t", "g", "none", "float32", "native")
    )
    layout = LayoutFacts(4, 0, 4, 0, 2, 16, "float32", 100)
    address, bus = "127.0.0.1:1", "tcp://127.0.0.1:2"
    return Registration("n1", "inc", address, bus, "host", 7, model, layout, 512, load, step_tokens=256)


def test_registration_round_trip() -> None:
    facts = registration()
    assert codec_node.registration_from_proto(codec_node.registration_to_proto(facts)) == facts


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("node_id", "", "node_id"),
        ("address", "", "address"),
        ("kv_bytes_per_token", 0, "kv_bytes_per_token"),
        ("layout.block_size", 0, "layout.block_size"),
        ("layout.layer_end", 0, "layout.layer_end"),
        ("model.vocab_size", 0, "model.vocab_size"),
        ("load.blocks_free", 11, "load.blocks_free"),
        ("load.role", 0, "role"),
    ],
)
def test_bad_registrations_name_the_field(path: str, value: object, field: str) -> None:
    message = codec_node.registration_to_proto(registration())
    *parents, name = path.split(".")
    target = message
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)
    with pytest.raises(InvalidArgument) as caught:
        codec_node.registration_from_proto(message)
    assert caught.value.field == field
