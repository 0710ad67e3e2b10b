"""What a simulation ends with when something in it is wrong."""

from __future__ import annotations


class SimulationError(AssertionError):
    """Something that must hold did not; the same seed leads here again."""
