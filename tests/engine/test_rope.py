"""Frequencies of every kind equal transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from baton.core.errors import InvalidArgument
from baton.engine.rope import Rope

HEAD_DIM, THETA, LIMIT = 24, 10000.0, 64
KINDS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.25,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
]


def _theirs(options: dict[str, Any], positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    config = LlamaConfig(
        head_dim=HEAD_DIM,
        max_position_embeddings=LIMIT,
        rope_parameters={**options, "rope_theta": THETA},
    )
    return LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])


def _ours(options: dict[str, Any], positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = {key: value for key, value in options.items() if key != "rope_type"}
    rope = Rope(options["rope_type"], HEAD_DIM, THETA, LIMIT, numbers)
    angles = rope.angles(positions)
    return angles.cos() * rope.scale, angles.sin() * rope.scale


@pytest.mark.parametrize("options", KINDS, ids=lambda o: o["rope_type"])
def test_equals_transformers(options: dict[str, Any]) -> None:
    positions = torch.arange(LIMIT)
    for got, want in zip(_ours(options, positions), _theirs(options, positions), strict=True):
        torch.testing.assert_close(got, want[0, :, : HEAD_DIM // 2], atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [LIMIT + 1, 100, 2 * LIMIT])
def test_dynamic_beyond_the_limit_rotates_as_a_cached_decoder_does(length: int) -> None:
    """The last token of a sequence is rotated by its length, whatever ran before or beside it."""
    options = {"rope_type": "dynamic", "factor": 2.0}
    ours = _ours(options, torch.arange(length))
    theirs = _theirs(options, torch.arange(length))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got[-1], want[0, -1, : HEAD_DIM // 2], atol=1e-4, rtol=0)


def test_positions_of_one_step_do_not_touch_each_other() -> None:
    options = {"rope_type": "dynamic", "factor": 2.0}
    alone = _ours(options, torch.tensor([10]))[0]
    beside = _ours(options, torch.tensor([10, 127]))[0]
    torch.testing.assert_close(beside[:1], alone, atol=0, rtol=0)


def test_divisors_of_a_gguf_file() -> None:
    factors = tuple(1.0 + i for i in range(HEAD_DIM // 2))
    got = Rope("factors", HEAD_DIM, THETA, LIMIT, {"factors": factors}).frequencies()
    plain = Rope("default", HEAD_DIM, THETA, LIMIT).frequencies()
    torch.testing.assert_close(got, plain / torch.tensor(factors))


def test_unknown_kinds_and_missing_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'spiral' is not one of"):
        Rope("spiral", HEAD_DIM, THETA, LIMIT)
    with pytest.raises(InvalidArgument, match="'llama3' needs low_freq_factor"):
        Rope("llama3", HEAD_DIM, THETA, LIMIT, {"factor": 8.0})
