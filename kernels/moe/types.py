from __future__ import annotations

from typing import NamedTuple

import torch

from baton.kernels.linear import Linear


class Routing(NamedTuple):
    """A token's experts, best first. ids: [tokens, top_k] int64, distinct; weights: [tokens, top_k] fp32."""

    ids: torch.Tensor
    weights: torch.Tensor


def check_routing(routing: Routing, tokens: int, experts: int) -> None:
    """ValueError: it is not of so many tokens, or names experts that are not there."""
    ids, weights = routing
    if ids.dtype is not torch.int64 or ids.dim() != 2 or weights.shape != ids.shape or len(ids) != tokens:
        raise ValueError(f"a routing {list(ids.shape)} with weights {list(weights.shape)} of {tokens} tokens")
    if bool(((ids < 0) | (ids >= experts)).any()):
        raise ValueError(f"a routing to experts that are not among the {experts}")


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
