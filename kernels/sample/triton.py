"""On GPUs; the same bits as everywhere, see `triton_kernel`.

A row is one program's work, of some tens of passes over its logits: batches fill a GPU, one row does not, and
takes longer than the host's kernels. Few rows are therefore chosen from on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import triton

from baton.kernels.sample.triton_kernel import sample_kernel
from baton.kernels.sample.types import Choice, Survey
from baton.kernels.sample.weights import LARGEST_FACTOR, LOG2_E
from baton.kernels.triton_support.launch import Launch

_TILE = 1_024


class SampleParams(NamedTuple):
    """The columns of choices, each [rows] on the logits' device: fp64, but for top_k, which is int64."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    noise: torch.Tensor


def sample(logits: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
    """See the package."""
    if not choices:
        return []
    ids = logits.new_empty(len(logits), dtype=torch.int64)
    exact = torch.tensor(choices, dtype=torch.float64).t().contiguous().to(logits.device)
    temperature, top_k, top_p, min_p, noise = exact
    sample_launch(logits, SampleParams(temperature, top_k.long(), top_p, min_p, noise), ids).run()
    chosen: list[int] = ids.tolist()
    return chosen


def survey(logits: torch.Tensor, count: int) -> Survey:
    """See the package. count: 0 .. vocab. The tokens come from torch's stable sort."""
    best = logits.new_empty(len(logits))
    mass = logits.new_empty(len(logits), dtype=torch.int64)
    survey_launch(logits, best, mass).run()
    top = logits.argsort(dim=-1, descending=True, stable=True)[:, :count] if count else mass.new_empty(0)
    return Survey(best, mass, top.view(len(logits), count))


def sample_launch(logits: torch.Tensor, params: SampleParams, ids: torch.Tensor) -> Launch:
    """ids: [rows] int64, which is filled."""
    none = params.temperature == 0.0
    factor = (LOG2_E / params.temperature).clamp(max=LARGEST_FACTOR).masked_fill(none, -1.0)
    arguments = {
        "factor_ptr": factor,
        "top_k_ptr": params.top_k,
        "top_p_ptr": params.top_p,
        "min_p_ptr": params.min_p,
        "noise_ptr": params.noise,
        "weights_ptr": logits.new_empty(logits.shape, dtype=torch.int64),
        "ids_ptr": ids,
        "best_ptr": None,
        "mass_ptr": None,
        "SURVEY": False,
    }
    return _launch(logits, arguments)


def survey_launch(logits: torch.Tensor, best: torch.Tensor, mass: torch.Tensor) -> Launch:
    """best: [rows] fp32, mass: [rows] int64, which are filled."""
    arguments = {
        "factor_ptr": logits.new_full((len(logits),), LOG2_E, dtype=torch.float64),
        "top_k_ptr": None,
        "top_p_ptr": None,
        "min_p_ptr": None,
        "noise_ptr": None,
        "weights_ptr": mass,
        "ids_ptr": None,
        "best_ptr": best,
        "mass_ptr": mass,
        "SURVEY": True,
    }
    return _launch(logits, arguments)


def _launch(logits: torch.Tensor, arguments: Mapping[str, object]) -> Launch:
    rows, vocab = logits.shape
    common = {
        "logits_ptr": logits,
        "vocab": vocab,
        "row_stride": logits.stride(0),
        "TILE": min(_TILE, triton.next_power_of_2(vocab)),
    }
    return Launch(sample_kernel, (rows,), {**arguments, **common}, warps=8, stages=1, fused=False)
