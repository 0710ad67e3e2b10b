"""Gate of a SwiGLU MLP (arXiv:2002.05202): silu(gate) * up.

gate_up: [tokens, 2 * size], gate first, any stride between tokens; returns [tokens, size], contiguous.
silu(x) is x / (1 + e^-x).
"""

from __future__ import annotations

import torch

from baton.kernels.silu_mul import cpu, reference


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    if gate_up.device.type == "cpu":
        return cpu.silu_mul(gate_up)
    return reference.silu_mul(gate_up)
