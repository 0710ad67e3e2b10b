"""The noise is a contract between releases: these values may never change."""

from __future__ import annotations

import numpy as np
import pytest

from baton.engine.sampler import uniform

PINNED = [
    (0, 0, "0x1.1744fc609093ap-1"),
    (0, 1, "0x1.9c11995da76abp-1"),
    (1, 0, "0x1.82f1929cce610p-3"),
    (42, 7, "0x1.d38fd0a90b1f0p-2"),
    (-1, 0, "0x1.764b38ef1b4dap-2"),
    (2**63 - 1, 2**31, "0x1.c89cf786dae88p-2"),
    (123456789, 15, "0x1.c06ae8b16f83dp-1"),
]


@pytest.mark.parametrize(("seed", "position", "expected"), PINNED)
def test_values_are_pinned(seed: int, position: int, expected: str) -> None:
    assert uniform(seed, position).hex() == expected


def test_it_is_uniform_over_positions_and_over_seeds() -> None:
    for values in ([uniform(5, i) for i in range(20_000)], [uniform(i, 5) for i in range(20_000)]):
        assert min(values) >= 0.0
        assert max(values) < 1.0
        counts = np.histogram(values, bins=50, range=(0, 1))[0]
        chi2 = ((counts - 400) ** 2 / 400).sum()
        assert chi2 < 95  # 49 degrees of freedom: p > 1e-4
        lag = np.corrcoef(values[:-1], values[1:])[0, 1]
        assert abs(lag) < 0.03
