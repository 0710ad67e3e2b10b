"""Mixture of experts (arXiv:2101.03961): each token goes through the MLPs of its top_k experts.

    routing = route(router(x), top_k, renormalize)   # router: a Linear [experts, width]
    out = experts(x, routing, mlps)                  # mlps: one ExpertMlp per expert

or, in steps that a backend may fuse as it likes:

    groups = group(routing.ids, len(mlps))
    y = down(silu_mul(gate_up(x[groups.tokens])))    # each expert on its own `counts[e]` rows, in order
    out = combine(y, groups.places, routing.weights)

A token's result depends on the token alone: its experts' results are summed from its best expert to its
worst, in fp32, whatever else is in the batch. Any number of experts, of which any may get no token; any
width.
"""

from __future__ import annotations

from baton.kernels.moe import reference
from baton.kernels.moe.types import ExpertMlp, Groups, Routing

__all__ = ["ExpertMlp", "Groups", "Routing", "reference"]
