"""Validation at the edge: each bad value names its field (SAMP2), and what passes is safe to run (SAMP6)."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import Code, InvalidArgument
from baton.core.request import MAX_SEED, FinishReason, Request, SamplingParams, Slo

VOCAB = 100
CONTEXT = 32
GOOD = Request("r", (1, 2, 3))

BAD_SAMPLING = [
    ("logit_bias", ((VOCAB, 5.0),), "logit_bias"),
    ("logit_bias", ((-1, 5.0),), "logit_bias"),
    ("logit_bias", (("x", 1.0),), "logit_bias"),
    ("logit_bias", ((0, 1e9),), "logit_bias[0]"),
    ("logit_bias", ((0, math.nan),), "logit_bias[0]"),
    ("logit_bias", ((0, -math.inf),), "logit_bias[0]"),
    ("stop_token_ids", (VOCAB,), "stop_token_ids"),
    ("stop_token_ids", (1.0,), "stop_token_ids"),
    ("stop_token_ids", (True,), "stop_token_ids"),
    ("stop_token_ids", (-1,), "stop_token_ids"),
    ("stop_token_ids", (1,) * 1025, "stop_token_ids"),
    ("bad_token_ids", (VOCAB,), "bad_token_ids"),
    ("bad_token_ids", (2**63,), "bad_token_ids"),
    ("top_k", -2, "top_k"),
    ("top_k", 2**31, "top_k"),
    ("top_k", 1.5, "top_k"),
    ("top_k", True, "top_k"),
    ("top_p", -0.1, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("top_p", math.nan, "top_p"),
    ("min_p", 2.0, "min_p"),
    ("min_p", -0.1, "min_p"),
    ("temperature", -1.0, "temperature"),
    ("temperature", math.inf, "temperature"),
    ("temperature", math.nan, "temperature"),
    ("temperature", 10**400, "temperature"),
    ("temperature", "1", "temperature"),
    ("temperature", True, "temperature"),
    ("repetition_penalty", 0.0, "repetition_penalty"),
    ("repetition_penalty", -1.0, "repetition_penalty"),
    ("repetition_penalty", math.inf, "repetition_penalty"),
    ("presence_penalty", 2.1, "presence_penalty"),
    ("frequency_penalty", -2.1, "frequency_penalty"),
    ("frequency_penalty", math.nan, "frequency_penalty"),
    ("seed", 2**64, "seed"),
    ("seed", -2, "seed"),
    ("seed", MAX_SEED + 1, "seed"),
    ("min_tokens", -1, "min_tokens"),
    ("min_tokens", 17, "min_tokens"),  # max_tokens is 16
    ("min_tokens", "3", "min_tokens"),
    ("logprobs", -1, "logprobs"),
    ("logprobs", VOCAB + 1, "logprobs"),
    ("prompt_logprobs", -1, "prompt_logprobs"),
    ("prompt_logprobs", VOCAB + 1, "prompt_logprobs"),
]

BAD_REQUEST = [
    ("prompt_ids", (), "prompt"),
    ("prompt_ids", (-1,), "prompt"),
    ("prompt_ids", (1, VOCAB), "prompt"),
    ("prompt_ids", (2**31,), "prompt"),
    ("prompt_ids", (2**63,), "prompt"),
    ("prompt_ids", (1,) * CONTEXT, "prompt"),
    ("output_ids", (VOCAB,), "output_ids"),
    ("output_ids", (1,) * 16, "output_ids"),
    ("eos_token_ids", (-1,), "eos_token_ids"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 2**31, "max_tokens"),
    ("slo", Slo(ttft_s=0.0), "slo.ttft_s"),
    ("slo", Slo(ttft_s=math.nan), "slo.ttft_s"),
    ("slo", Slo(tpot_s=-1.0), "slo.tpot_s"),
    ("timeout_s", math.nan, "timeout_s"),
    ("timeout_s", math.inf, "timeout_s"),
]


def name_of(value: object) -> str:
    return repr(value)[:24]


@pytest.mark.parametrize(("name", "value", "field"), BAD_SAMPLING, ids=name_of)
def test_a_bad_sampling_value_names_its_field(name: str, value: object, field: str) -> None:
    request = replace(GOOD, sampling=replace(SamplingParams(), **{name: value}))
    with pytest.raises(InvalidArgument) as caught:
        request.validate(VOCAB, CONTEXT)
    assert caught.value.field == field
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(("name", "value", "field"), BAD_REQUEST, ids=name_of)
def test_a_bad_request_value_names_its_field(name: str, value: object, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        replace(GOOD, **{name: value}).validate(VOCAB, CONTEXT)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(top_k=-1),
        SamplingParams(top_k=0),
        SamplingParams(top_k=VOCAB + 1000),  # more than there are: off
        SamplingParams(top_p=0.0),
        SamplingParams(temperature=0),
        SamplingParams(temperature=1e-30),
        SamplingParams(seed=0),
        SamplingParams(seed=-1),
        SamplingParams(seed=MAX_SEED),
        SamplingParams(logprobs=0, prompt_logprobs=VOCAB),
        SamplingParams(logit_bias=((0, -100.0), (VOCAB - 1, 100.0))),
        SamplingParams(min_tokens=16),
    ],
    ids=name_of,
)
def test_the_edges_of_what_is_allowed(sampling: SamplingParams) -> None:
    replace(GOOD, sampling=sampling).validate(VOCAB, CONTEXT)


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.0), True),
        (SamplingParams(top_p=0.0), True),
        (SamplingParams(top_k=1), True),
        (SamplingParams(top_k=-1), False),
        (SamplingParams(temperature=1e-9), False),
    ],
)
def test_what_greedy_means(sampling: SamplingParams, greedy: bool) -> None:
    assert sampling.greedy is greedy


@pytest.mark.parametrize("prompt", [1, 30, 31])
@pytest.mark.parametrize(("max_tokens", "limit"), [(1, 1), (2, 2), (1000, 1000)])
def test_output_is_limited_by_request_or_context(prompt: int, max_tokens: int, limit: int) -> None:
    request = Request("r", (1,) * prompt, max_tokens=max_tokens)
    request.validate(VOCAB, CONTEXT)
    assert request.output_limit(CONTEXT) == min(limit, CONTEXT - prompt) >= 1


def test_a_prompt_that_is_too_long_is_told_the_true_numbers() -> None:
    with pytest.raises(InvalidArgument, match=r"has 33 tokens.*limit is 32.*at most 31"):
        Request("r", (1,) * 33).validate(VOCAB, CONTEXT)


def test_a_retry_continues_after_what_was_delivered() -> None:
    first = replace(GOOD, sampling=SamplingParams(seed=7), timeout_s=5.0)
    second = first.retried((4, 5), timeout_s=2.0)
    assert (second.attempt, second.output_ids, second.timeout_s) == (1, (4, 5), 2.0)
    assert second.token_ids == (1, 2, 3, 4, 5)
    assert second.prefill_tokens == 5
    assert replace(second, attempt=0, output_ids=(), timeout_s=5.0) == first
    assert second.output_limit(CONTEXT) == first.output_limit(CONTEXT), "the limit counts all attempts"


def test_finish_reasons_have_the_names_clients_know() -> None:
    assert {reason.value for reason in FinishReason} == {"stop", "length", "cancelled", "error"}


number = st.one_of(
    st.floats(), st.integers(-5, 5), st.integers(), st.booleans(), st.none(), st.just("1"), st.just(10**400)
)
ids = st.lists(st.one_of(st.integers(-2, VOCAB + 1), st.integers()), max_size=4).map(tuple)
anything = st.builds(
    SamplingParams,
    temperature=number,
    top_k=number,
    top_p=number,
    min_p=number,
    repetition_penalty=number,
    presence_penalty=number,
    frequency_penalty=number,
    logit_bias=st.lists(st.tuples(st.integers(-2, VOCAB + 1), number), max_size=3).map(tuple),
    min_tokens=number,
    stop_token_ids=ids,
    bad_token_ids=ids,
    seed=number,
    logprobs=number,
    prompt_logprobs=number,
)
plausible = st.builds(
    SamplingParams,
    temperature=st.floats(0, 1e308) | st.just(math.inf),
    top_k=st.integers(-1, 200),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 10),
    logit_bias=st.lists(st.tuples(st.integers(0, VOCAB), st.floats(-101, 101)), max_size=3).map(tuple),
    min_tokens=st.integers(0, 17),
    stop_token_ids=st.lists(st.integers(0, VOCAB), max_size=3).map(tuple),
    seed=st.integers(-1, MAX_SEED),
    logprobs=st.none() | st.integers(0, VOCAB + 1),
)


def field_that_is_refused(request: Request) -> str | None:
    try:
        request.validate(VOCAB, CONTEXT)
    except InvalidArgument as error:
        return error.field
    return None


@given(
    anything | plausible,
    st.lists(st.integers(-1, VOCAB), max_size=CONTEXT + 2).map(tuple),
    st.integers(-1, 20),
)
def test_whatever_passes_is_safe(sampling: SamplingParams, prompt: tuple[int, ...], max_tokens: int) -> None:
    """Refused with a named field, or every number the engine will index or divide with is in its range."""
    request = Request("r", prompt, sampling=sampling, max_tokens=max_tokens)
    refused_field = field_that_is_refused(request)
    if refused_field is not None:
        assert refused_field
        return
    assert 1 <= len(prompt) < CONTEXT
    assert 1 <= request.output_limit(CONTEXT) <= CONTEXT - len(prompt)
    used = (*prompt, *sampling.stop_token_ids, *sampling.bad_token_ids, *(i for i, _ in sampling.logit_bias))
    assert all(0 <= token_id < VOCAB for token_id in used)
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        *(bias for _, bias in sampling.logit_bias),
    )
    assert all(math.isfinite(value) for value in numbers)
    assert sampling.temperature >= 0.0
    assert sampling.repetition_penalty > 0.0
    assert 0.0 <= sampling.top_p <= 1.0
    assert 0.0 <= sampling.min_p <= 1.0
    assert sampling.min_tokens <= max_tokens
    assert -1 <= sampling.seed < 2**63
    assert sampling.logprobs is None or 0 <= sampling.logprobs <= VOCAB
    assert sampling.prompt_logprobs is None or 0 <= sampling.prompt_logprobs <= VOCAB
