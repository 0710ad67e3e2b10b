"""The native kernels' numbers, as they were when their revision was last raised."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pytest
import torch

from baton.kernels import native
from baton.kernels.attention import AttentionParams
from baton.kernels.linear.native import prepare
from baton.kernels.quantize import QuantizedWeight, quantize
from baton.kernels.quantize.scheme import SCHEMES
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.silu_mul import native as silu_mul
from tests.kernels.attention_cases import KV_DTYPES, Talk

# By native.REVISION.
DIGESTS = {1: "a9bafe20b7e05f7af7b1a1c552196d78"}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """In [-2, 2), the same on every machine: a generator's own bits, and no function of theirs."""
    count = int(np.prod(shape))
    whole = (np.random.PCG64(seed).random_raw(count) >> np.uint64(40)).astype(np.int64) - 2**23
    return torch.from_numpy((whole / 2**22).astype(np.float32)).view(shape)


def products() -> Iterator[torch.Tensor]:
    weight = numbers(40, 200)
    held: list[torch.Tensor | QuantizedWeight] = [quantize(weight, scheme) for scheme in SCHEMES.values()]
    held += [weight, weight.bfloat16(), weight.half()]
    for each in held:
        layer = prepare(each, numbers(40, seed=1))
        for rows in (1, 5, 33):
            yield layer(numbers(rows, 200, seed=2 + rows))


def attended() -> Iterator[torch.Tensor]:
    for dtype in KV_DTYPES:
        talk = Talk([600, 70], heads=(6, 2), head_dim=40, block_size=16, dtype=dtype)
        talk.kv = [numbers(*part.shape, seed=i) for i, part in enumerate(talk.kv)]
        talk.q = [numbers(*part.shape, seed=9 + i) for i, part in enumerate(talk.q)]
        talk.params = AttentionParams(0.25, softcap=5.0)
        yield from talk.run([[(0, 0, 590), (1, 0, 70)], [(0, 590, 7)], [(0, 597, 3)]])


def small() -> Iterator[torch.Tensor]:
    x, update = numbers(5, 576), numbers(5, 576, seed=1)
    yield rms_norm.add_rms_norm(x, update, numbers(576, seed=2), 1e-5)
    yield silu_mul.silu_mul(numbers(5, 96, seed=3) * 20)


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_numbers_change_with_the_revision_only() -> None:
    """If it fails, and results were meant to change: raise native.REVISION, and put its digest above."""
    digest = sha256()
    for part in (*products(), *attended(), *small()):
        assert part.isfinite().all()
        digest.update(part.numpy().tobytes())
    assert digest.hexdigest()[:32] == DIGESTS[native.REVISION]
