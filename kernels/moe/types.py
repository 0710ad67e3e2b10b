from __future__ import annotations

from typing import NamedTuple

import torch

from baton.kernels.linear import Linear


class Routing(NamedTuple):
    """A token's experts, best first. ids: [tokens, top_k] int64, distinct; weights: [tokens, top_k] fp32."""

    ids: torch.Tensor
    weights: torch.Tensor


class Groups(NamedTuple):
    """The (token, choice) pairs sorted by expert, then token. counts: [experts] int64, pairs of each expert;
    tokens: [tokens * top_k] int64, each pair's token; places: [tokens, top_k] int64, where each pair is."""

    counts: torch.Tensor
    tokens: torch.Tensor
    places: torch.Tensor


class ExpertMlp(NamedTuple):
    """gate_up: width to 2 * inner, gate first; down: inner to width."""

    gate_up: Linear
    down: Linear
