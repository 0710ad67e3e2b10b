"""SAMP4: a seeded request gives the same tokens whoever shares its batch, in whatever slot and layout."""

from __future__ import annotations

import random

import pytest
import torch

from baton.core.request import MAX_SEED, SamplingParams
from baton.engine.sampler import Sampler
from tests.engine.sampler.make import row

VOCAB = 331
STEPS = 16
SAMPLER = Sampler(VOCAB)


def logits_after(history: list[int]) -> torch.Tensor:
    """A stand-in for a model: logits are a function of the whole history."""
    generator = torch.Generator().manual_seed(hash(tuple(history)) % 2**31)
    return torch.randn(VOCAB, generator=generator) * 2


def alone(sampling: SamplingParams, prompt: list[int], steps: int = STEPS) -> list[int]:
    output: list[int] = []
    for _ in range(steps):
        one = row(sampling, prompt=prompt, output=output)
        output.append(SAMPLER(logits_after([*prompt, *output])[None], [one])[0][0])
    return output


MINE = SamplingParams(temperature=0.9, seed=42, top_p=0.95, frequency_penalty=0.5)


@pytest.mark.parametrize("neighbours", range(8))
def test_neighbours_slots_padding_and_strides_change_nothing(neighbours: int) -> None:
    expected = alone(MINE, [3, 4])
    dice = random.Random(neighbours)
    output: list[int] = []
    for _ in range(STEPS):
        rows = [row(MINE, prompt=[3, 4], output=output)]
        table = [logits_after([3, 4, *output])]
        for i in range(dice.randint(0, neighbours)):
            seed = dice.getrandbits(63)
            sampling = SamplingParams(temperature=dice.choice([0.0, 1e-30, 0.7, 3.0]), top_p=0.9, seed=seed)
            at = dice.randint(0, len(rows))
            rows.insert(at, row(sampling, prompt=[i], name=f"n{i}"))
            table.insert(at, torch.randn(VOCAB) * 300)
        slot = next(i for i, one in enumerate(rows) if one.seq[0] == "r")
        padded = torch.full((len(rows), VOCAB + dice.randint(0, 9)), 1e9)
        padded[:, :VOCAB] = torch.stack(table)
        output.append(SAMPLER(padded, rows)[slot][0])
    assert output == expected


def test_the_positions_of_a_draft_give_what_single_steps_give() -> None:
    """k+1 positions of one sequence in one call: what speculation by equality relies on."""
    sampling = SamplingParams(temperature=0.8, seed=7, repetition_penalty=1.3, min_tokens=4, logprobs=3)
    prompt, eos = [5, 6, 7], [9]
    output = alone(sampling, prompt, 8)
    rows = [row(sampling, prompt=prompt, output=output[:i], eos=eos) for i in range(8)]
    table = torch.stack([logits_after([*prompt, *output[:i]]) for i in range(8)])
    assert SAMPLER(table, rows) == [SAMPLER(table[i : i + 1].clone(), [one])[0] for i, one in enumerate(rows)]
    assert [token_id for token_id, _ in SAMPLER(table, rows)] == output


def test_a_retry_continues_the_same_text() -> None:
    whole = alone(MINE, [1, 2])
    output = whole[:7]
    for _ in range(STEPS - 7):
        one = row(MINE, prompt=[1, 2], output=output, name="attempt-2")
        output.append(SAMPLER(logits_after([1, 2, *output])[None], [one])[0][0])
    assert output == whole


def test_different_seeds_differ_and_every_legal_seed_works() -> None:
    runs = [alone(SamplingParams(seed=seed), [1], 20) for seed in (-1, 0, 1, MAX_SEED)]
    assert len({tuple(run) for run in runs}) == 4


def test_the_number_of_threads_changes_nothing() -> None:
    table = torch.randn(4, 70_001, generator=torch.Generator().manual_seed(3)) * 4
    sampler = Sampler(70_001)
    rows = [
        row(SamplingParams(temperature=t, top_p=p, top_k=k, seed=i, logprobs=5))
        for i, (t, p, k) in enumerate([(0.7, 1.0, 0), (1.0, 0.9, 0), (30.0, 0.9, 0), (1.0, 1.0, 40)])
    ]
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(sampler(table, rows))
    torch.set_num_threads(before)
    assert results[0] == results[1]
