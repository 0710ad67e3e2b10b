"""SAMP3's part: sizes, sums and finite numbers."""

from __future__ import annotations

import math

import pytest
import torch

from baton.core.batch import LOGPROB_FLOOR
from baton.core.request import SamplingParams
from baton.engine.sampler import Sampler
from tests.engine.sampler.make import row

VOCAB = 331
SAMPLER = Sampler(VOCAB)
LOGITS = torch.randn(1, VOCAB + 21, generator=torch.Generator().manual_seed(2)) * 3 - 20
LOGITS[0, VOCAB:] = 0.0  # what padded weights give: above every real logit


@pytest.mark.parametrize("count", [0, 1, 5, VOCAB])
def test_the_list_has_the_asked_size(count: int) -> None:
    [(token_id, logprobs)] = SAMPLER(LOGITS, [row(SamplingParams(temperature=5, seed=1, logprobs=count))])
    assert logprobs is not None
    assert logprobs.token_id == token_id < VOCAB
    assert len(logprobs.top) == count
    values = [value for _, value in logprobs.top]
    assert values == sorted(values, reverse=True)
    assert dict(logprobs.top).get(token_id, logprobs.logprob) == logprobs.logprob


def test_they_sum_to_one_without_the_padding() -> None:
    [(_, logprobs)] = SAMPLER(LOGITS, [row(SamplingParams(seed=1, logprobs=VOCAB))])
    assert logprobs is not None
    assert sorted(i for i, _ in logprobs.top) == list(range(VOCAB))
    assert math.isclose(sum(math.exp(value) for _, value in logprobs.top), 1.0, rel_tol=1e-9)


def test_edits_and_temperature_do_not_change_them() -> None:
    plain = SamplingParams(temperature=0.0, logprobs=5)
    [(best, expected)] = SAMPLER(LOGITS, [row(plain)])
    edited = SamplingParams(
        temperature=0.2, top_k=1, repetition_penalty=2.0, logit_bias=((best, 5.0), (1, -100.0)), logprobs=5
    )
    assert SAMPLER(LOGITS, [row(edited)]) == [(best, expected)]


def test_prompt_logprobs_equal_those_of_a_sampled_row() -> None:
    [(token_id, expected)] = SAMPLER(LOGITS, [row(SamplingParams(temperature=3, seed=8, logprobs=7))])
    assert SAMPLER.prompt_logprobs(LOGITS.repeat(3, 1), [token_id] * 3, 7) == (expected,) * 3
    assert SAMPLER.prompt_logprobs(LOGITS[:0], [], 3) == ()


def test_log_of_zero_is_the_floor() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = float("-inf")
    [entry] = SAMPLER.prompt_logprobs(logits, [9], VOCAB)
    assert entry.logprob == LOGPROB_FLOOR
    assert entry.top[-1] == (9, LOGPROB_FLOOR)
