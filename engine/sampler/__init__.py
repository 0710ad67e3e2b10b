"""From logits to tokens."""

from baton.engine.sampler.noise import uniform
from baton.engine.sampler.sampler import NO_TOKEN, Sampler

__all__ = ["NO_TOKEN", "Sampler", "uniform"]
