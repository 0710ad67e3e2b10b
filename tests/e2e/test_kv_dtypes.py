"""Prefill and decode with KV of equal or different types: decode gets what it would have stored itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.core.prefix import chain, root_key
from baton.kernels.attention.kv_layer import dequantize_kv, quantize_kv
from tests.e2e.cluster import config
from tests.e2e.exact import LOGPROB_TOLERANCE, QUIET, Case, solid_case, tiny
from tests.e2e.inprocess import InProcess, Node, inprocess
from tests.models import Reference

# (prefill's, decode's, decode's block size, way)
PAIRS = [
    ("float32", "int8", 4, "shm"),
    ("int8", "bfloat16", 4, "tcp"),
    ("fp8", "int8", 8, "tcp"),
    ("bfloat16", "fp8", 3, "shm"),
    ("int8", "int8", 4, "tcp"),
    ("fp8", "fp8", 8, "shm"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("kv-dtypes"))


@pytest.fixture(scope="module")
def cases(model: tuple[Path, Reference]) -> list[Case]:
    return [solid_case(model[1], n, 6) for n in (1, 4, 24, 33)]


async def _answers(cluster: InProcess, cases: list[Case]) -> list[tuple[list[int], list[float]]]:
    found = []
    for case in cases:
        got = await cluster.client.generate(
            case.prompt, max_tokens=6, temperature=0.0, logprobs=0, ignore_eos=True, timeout_s=50
        )
        found.append((list(got.token_ids), [one.logprob for one in got.logprobs]))
    return found


def _stored(node: Node, prompt: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A prompt's first 24 tokens in a node's pool: [tokens, layers, 2, kv_heads(, head_dim)]."""
    pool = node.app._parts.runner.pool
    size = pool.shape.block_size
    root = root_key(revision=node.app._parts.info.fingerprint.weights)
    blocks = node.core.kv.index.match(list(chain(root, prompt[:24], size)))
    assert len(blocks) == 24 // size
    values = pool.codes[blocks].movedim(3, 1).flatten(0, 1)
    scales = None if pool.scales is None else pool.scales[blocks].movedim(3, 1).flatten(0, 1)
    return values, scales


@pytest.mark.parametrize(("prefill", "decode", "block_size", "way"), PAIRS)
async def test_pairs_convert(
    prefill: str, decode: str, block_size: int, way: str, model: tuple[Path, Reference], cases: list[Case]
) -> None:
    settings = config(
        model[0],
        **QUIET,
        prefill_nodes={"engine": {"kv_dtype": prefill}},
        decode_nodes={"engine": {"kv_dtype": decode, "block_size": block_size}},
        transfer={"kinds": (way,)},
    )
    async with inprocess(settings) as cluster:
        answers = await _answers(cluster, cases)
        _check_arrived(cluster, cases[-1].prompt)
        await _answers(cluster, cases)  # beginnings are there already
        _check_arrived(cluster, cases[-1].prompt)
        await cluster.settled()
    if prefill == decode:
        alone = config(model[0], **QUIET, prefill=0, decode=0, both=1, engine={"kv_dtype": decode})
        async with inprocess(alone) as cluster:
            for (tokens, logprobs), want in zip(answers, await _answers(cluster, cases), strict=True):
                assert tokens == want[0]
                assert logprobs == pytest.approx(want[1], abs=LOGPROB_TOLERANCE)


def _check_arrived(cluster: InProcess, prompt: list[int]) -> None:
    """To the bit: as it was where the types are equal, else as decode stores such vectors."""
    values, scales = _stored(cluster.nodes["prefill-0"], prompt)
    there, scales_there = _stored(cluster.nodes["decode-0"], prompt)
    if values.dtype != there.dtype:
        plain = values.float() if scales is None else dequantize_kv(values, scales)
        values, scales = plain.to(there.dtype), None
        if scales_there is not None:
            values, scales = quantize_kv(plain, there.dtype)
    assert torch.equal(values.contiguous().view(torch.uint8), there.contiguous().view(torch.uint8))
    assert (scales is None) == (scales_there is None)
    assert scales is None or torch.equal(scales, scales_there)
    assert values.float().abs().sum() > 0
