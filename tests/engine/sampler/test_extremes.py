"""SAMP5 and the accepted edge values of SAMP2: no overflow, no banned id, neighbours are safe."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from baton.core.batch import LOGPROB_FLOOR
from baton.core.request import SamplingParams
from baton.engine.sampler import NO_TOKEN, Sampler
from tests.engine.sampler.make import row

VOCAB = 331
SAMPLER = Sampler(VOCAB)
BANNED = tuple((i, -100.0) for i in (3, 50, 51, 200, 330))


def wild_logits(dtype: torch.dtype) -> torch.Tensor:
    """+-300 with a clear winner once the five banned ids, all at the top, are out."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(VOCAB, generator=generator) * 590 - 300
    logits[17] = 296.0
    for i, _ in BANNED:
        logits[i] = 300.0
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0, 1e-30, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 2, 100, 5e-324])
def test_temperatures(temperature: float, dtype: torch.dtype) -> None:
    logits = wild_logits(dtype)
    grid = list(itertools.product((1e-6, 0.5, 1.0), (1, 0, -1, 1000)))
    rows = []
    for i, (top_p, top_k) in enumerate(grid):
        rows.append(row(SamplingParams(temperature, top_k, top_p, logit_bias=BANNED, seed=i, logprobs=VOCAB)))
        rows.append(row(SamplingParams(temperature=0.0)))
    results = SAMPLER(logits.expand(len(rows), VOCAB), rows)
    for (_, top_k), (token_id, logprobs) in zip(grid, results[::2], strict=True):
        assert token_id not in {i for i, _ in BANNED}
        if temperature <= 1e-3 or top_k == 1:
            assert token_id == 17
        assert logprobs is not None
        assert all(math.isfinite(value) for _, value in logprobs.top)
    assert {token_id for token_id, _ in results[1::2]} == {3}


def test_masked_logits_in_a_mixed_batch() -> None:
    logits = torch.full((6, VOCAB), float("-inf"))
    logits[:, 100] = -5.0
    temperatures = [0.0, 1.0, 0.0, 1e-30, 100.0, 0.5]
    rows = [
        row(SamplingParams(temperature=t, min_p=0.3, top_p=0.9, top_k=20, seed=i, logprobs=2))
        for i, t in enumerate(temperatures)
    ]
    for token_id, logprobs in SAMPLER(logits, rows):
        assert token_id == 100
        assert logprobs is not None
        assert logprobs.logprob == 0.0
        assert logprobs.top == ((100, 0.0), (0, LOGPROB_FLOOR))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(top_p=0.0, seed=1), 7),
        (SamplingParams(top_k=1, seed=1), 7),
        (SamplingParams(min_p=1.0, seed=1), 7),
        (SamplingParams(top_p=1e-300, seed=1), 7),
        (SamplingParams(temperature=0.0, logit_bias=((2, 100.0),)), 2),
        (SamplingParams(temperature=0.0, logit_bias=((7, -99.9),)), 9),
        (SamplingParams(temperature=0.0, bad_token_ids=(7,)), 9),
        (SamplingParams(temperature=0.0, repetition_penalty=1e-300), 0),
        (SamplingParams(temperature=1.0, repetition_penalty=1e300), 7),
        (SamplingParams(bad_token_ids=tuple(i for i in range(VOCAB) if i != 33)), 33),
    ],
)
def test_edge_values(sampling: SamplingParams, expected: int) -> None:
    """Prompt: id 0, of logit 1. Id 7 is the best by far, then 9."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 9], logits[0, 0] = 50.0, 20.0, 1.0
    assert SAMPLER(logits, [row(sampling)])[0][0] == expected


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, [300, 8, 40]] = 1.0
    rows = [
        row(SamplingParams(temperature=0.0)),
        row(SamplingParams(temperature=0.0, bad_token_ids=(8,))),
    ]
    assert [token_id for token_id, _ in SAMPLER(logits, rows)] == [8, 40]


def test_a_whole_vocabulary_banned_falls_back_to_the_unbanned_choice() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 9.0
    everything = tuple((i, -100.0) for i in range(VOCAB))
    one = row(SamplingParams(temperature=0.0, logit_bias=everything))
    assert SAMPLER(logits, [one])[0][0] == 5


def test_min_tokens_yields_when_only_an_end_is_left() -> None:
    logits = torch.zeros(1, VOCAB)
    only_eos = SamplingParams(bad_token_ids=tuple(range(VOCAB - 1)), min_tokens=3, seed=2)
    assert SAMPLER(logits, [row(only_eos, eos=[VOCAB - 1])])[0][0] == VOCAB - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [float("nan"), float("-inf")])
def test_a_row_without_a_distribution_harms_only_itself(broken: float, temperature: float) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    rows = [row(SamplingParams(temperature=temperature, seed=i, logprobs=1)) for i in range(3)]
    good = SAMPLER(logits, rows)
    if math.isnan(broken):
        logits[1, 77] = broken
    else:
        logits[1] = broken
    assert SAMPLER(logits, rows) == [good[0], (NO_TOKEN, None), good[2]]
    [entry] = SAMPLER.prompt_logprobs(logits[1:2], [4], 2)
    assert entry.logprob == LOGPROB_FLOOR


def test_overflowed_logits_share_the_choice() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [4, 6]] = float("inf")
    seen = {SAMPLER(logits, [row(SamplingParams(seed=i, top_p=0.9))])[0][0] for i in range(40)}
    assert seen == {4, 6}


def test_no_rows() -> None:
    assert SAMPLER(torch.empty(0, VOCAB), []) == []


def test_a_vocabulary_whose_weights_could_overflow_their_sum_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary of 524288"):
        Sampler(1 << 19)


def test_one_row_of_a_transposed_product() -> None:
    """What torch's skinny products return: neither rows nor columns side by side."""
    logits = torch.zeros(VOCAB, 2)
    logits[77, 0], logits[78, 1] = 5.0, 5.0
    assert SAMPLER(logits[:, :1].t(), [row(SamplingParams(temperature=0.0))])[0][0] == 77
