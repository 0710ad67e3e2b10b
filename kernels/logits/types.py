from __future__ import annotations

from typing import NamedTuple

import torch

LARGEST = 1e38  # as good as certain, or as banned; and differences of two such logits stay finite in fp64


class LogitEdits(NamedTuple):
    """One entry per changed logit. rows, ids: [entries] int64, no pair twice; repetition (> 0; 1: none) and
    add (finite, or -inf: banned): [entries] fp64."""

    rows: torch.Tensor
    ids: torch.Tensor
    repetition: torch.Tensor
    add: torch.Tensor
