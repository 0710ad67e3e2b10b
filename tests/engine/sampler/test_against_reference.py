"""The pipeline against the readable reference, over everything a request may ask for."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from baton.core.batch import Row
from baton.core.request import SamplingParams
from baton.engine.sampler import Sampler, uniform
from tests.engine.sampler import reference
from tests.engine.sampler.make import row

VOCAB = 23
IDS = st.integers(0, VOCAB - 1)
LOGITS = st.lists(
    st.one_of(st.integers(-24, 24).map(lambda i: i / 4), st.just(float("-inf"))),
    min_size=VOCAB,
    max_size=VOCAB,
).filter(lambda values: max(values) > float("-inf"))

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-30, 1e-3, 0.3, 0.7, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, VOCAB, 1000]),
    top_p=st.sampled_from([0.0, 1e-6, 0.3, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.5]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 1.0]),
    frequency_penalty=st.sampled_from([-1.5, 0.0, 2.0]),
    logit_bias=st.dictionaries(IDS, st.sampled_from([-100.0, -3.0, 4.0, 100.0]), max_size=6).map(
        lambda d: tuple(d.items())
    ),
    min_tokens=st.sampled_from([0, 2, 9]),
    stop_token_ids=st.lists(IDS, max_size=2).map(tuple),
    bad_token_ids=st.lists(IDS, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    seed=st.integers(-1, 2**63 - 1),
)
ROWS = st.builds(
    lambda sampling, prompt, output, eos: row(sampling, prompt=prompt, output=output, eos=eos),
    PARAMS,
    st.lists(IDS, min_size=1, max_size=6),
    st.lists(IDS, max_size=6),
    st.lists(IDS, max_size=2),
)


@settings(max_examples=600, deadline=None)
@given(LOGITS, ROWS)
def test_the_chosen_token_is_the_references(logits: list[float], one: Row) -> None:
    noise = uniform(one.sampling.seed, len(one.history) - one.prompt_len)
    try:
        expected = reference.choose(logits, one, noise)
    except reference.Undecided:
        assume(False)
    [(token_id, logprobs)] = Sampler(VOCAB)(torch.tensor([logits]), [one])
    assert token_id == expected
    assert logprobs is None


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(LOGITS, ROWS), min_size=2, max_size=6), st.integers(0, 3))
def test_a_row_does_not_know_its_neighbours(pairs: list[tuple[list[float], Row]], padding: int) -> None:
    """One call over many rows of padded logits gives what one call each gives."""
    sampler = Sampler(VOCAB)
    table = torch.tensor([values + [1e9] * padding for values, _ in pairs])
    together = sampler(table, [one for _, one in pairs])
    assert together == [sampler(torch.tensor([values]), [one])[0] for values, one in pairs]
    assert all(0 <= token_id < VOCAB for token_id, _ in together)


@settings(max_examples=200, deadline=None)
@given(LOGITS, st.integers(0, VOCAB), ROWS)
def test_logprobs_are_those_of_the_raw_distribution(logits: list[float], count: int, one: Row) -> None:
    expected = reference.logprobs(logits)
    [result] = Sampler(VOCAB).prompt_logprobs(torch.tensor([logits]), [one.history[0]], count)
    assert result.token_id == one.history[0]
    assert abs(result.logprob - expected[one.history[0]]) < 1e-6
    order = sorted(range(VOCAB), key=lambda i: (-logits[i], i))[:count]
    assert [i for i, _ in result.top] == order
    assert all(abs(value - expected[i]) < 1e-6 for i, value in result.top)
