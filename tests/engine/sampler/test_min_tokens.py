"""SAMP6's part: with min_tokens=m at least m tokens come before an end, and an end is free to come at m."""

from __future__ import annotations

import pytest
import torch

from baton.core.request import SamplingParams
from baton.engine.sampler import Sampler
from tests.engine.sampler.make import row

VOCAB, EOS, STOP = 331, 330, 12
SAMPLER = Sampler(VOCAB)


def generate(sampling: SamplingParams, steps: int = 6) -> list[int]:
    """EOS is always the most likely token, the stop id the second."""
    logits = torch.linspace(0, 1, VOCAB)[None].clone()
    logits[0, EOS], logits[0, STOP] = 40.0, 30.0
    output: list[int] = []
    while len(output) < steps:
        one = row(sampling, prompt=[1, EOS], output=output, eos=[EOS])
        output.append(SAMPLER(logits, [one])[0][0])
        if output[-1] == EOS and not sampling.ignore_eos:
            break
    return output


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("m", range(5))
def test_eos_ends_at_exactly_m(m: int, temperature: float) -> None:
    output = generate(SamplingParams(temperature=temperature, min_tokens=m, stop_token_ids=(STOP,), seed=3))
    assert len(output) == m + 1
    assert output[-1] == EOS
    assert not {EOS, STOP} & set(output[:-1])


def test_ignored_eos_is_an_ordinary_token() -> None:
    sampling = SamplingParams(temperature=0.0, min_tokens=3, ignore_eos=True)
    assert generate(sampling, 4) == [EOS] * 4


def test_a_stop_id_that_is_eos_is_masked_even_if_eos_is_ignored() -> None:
    sampling = SamplingParams(temperature=0.0, min_tokens=2, ignore_eos=True, stop_token_ids=(EOS,))
    assert generate(sampling, 3) == [STOP, STOP, EOS]
