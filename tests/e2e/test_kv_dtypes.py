"""Prefill and decode with KV of equal or different types: decode gets what it would have stored itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.core.batch import Batch, Row, TokenLogprobs
from baton.core.prefix import chain, root_key
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.kv_pool import KvPool
from baton.engine.loader import load
from baton.engine.torch_runner import TorchRunner
from baton.kernels.attention.kv_layer import CODE_MAX, dequantize_kv, quantize_kv
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
NEW_TOKENS = 6
Answer = tuple[list[int], list[float]]
"""Token ids and log probabilities."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("kv-dtypes"))


@pytest.fixture(scope="module")
def cases(model: tuple[Path, Reference]) -> list[Case]:
    return [solid_case(model[1], n, NEW_TOKENS) for n in (1, 4, 24, 33)]


async def _answers(cluster: InProcess, cases: list[Case]) -> list[Answer]:
    found = []
    for case in cases:
        got = await cluster.client.generate(
            case.prompt, max_tokens=NEW_TOKENS, temperature=0.0, logprobs=0, ignore_eos=True, timeout_s=50
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
    expected = [_expected(model[0], prefill, decode, case.prompt) for case in cases]
    async with inprocess(settings) as cluster:
        _check_answers(await _answers(cluster, cases), expected)
        _check_arrived(cluster, cases[-1].prompt)
        _check_answers(await _answers(cluster, cases), expected)  # beginnings are there already
        _check_arrived(cluster, cases[-1].prompt)
        await cluster.settled()


def _expected(folder: Path, prefill: str, decode: str, prompt: list[int]) -> Answer:
    """By two engines that no wire connects: the prompt and the first token by one, the rest by the other,
    over what the one's KV is in the other's type."""
    one, other = (
        load(EngineConfig(str(folder), kv_dtype=kv_dtype, block_size=64, threads=1)).runner(2)
        for kv_dtype in (prefill, decode)
    )
    outputs = [_step(one, prompt, 0, [])]
    _put(other.pool, *_converted(one.pool.codes[1:], _scales(one.pool), other.pool.codes.dtype))
    while len(outputs) < NEW_TOKENS:
        made = [output.token_id for output in outputs]
        outputs.append(_step(other, prompt, len(prompt) + len(made) - 1, made))
    return [one.token_id for one in outputs], [one.logprob for one in outputs]


def _step(runner: TorchRunner, prompt: list[int], start: int, made: list[int]) -> TokenLogprobs:
    """The token after the prompt and what was made, of which all from `start` on is computed."""
    history, sampling = [*prompt, *made], SamplingParams(temperature=0.0, logprobs=0)
    row = Row(("a", 0), history[start:], start, [1], True, sampling, history, len(prompt))
    [output] = runner.run(Batch((row,), clear=(1,) if not made else ())).rows
    assert output.logprobs is not None
    return output.logprobs


def _scales(pool: KvPool) -> torch.Tensor | None:
    return None if pool.scales is None else pool.scales[1:]


def _put(pool: KvPool, values: torch.Tensor, scales: torch.Tensor | None) -> None:
    pool.codes[1:].view(torch.uint8).copy_(values.contiguous().view(torch.uint8))
    if pool.scales is not None and scales is not None:
        pool.scales[1:].copy_(scales)


def _converted(
    values: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As it is where the types are equal, else as a pool of this type stores such vectors."""
    if values.dtype == dtype:
        return values, scales
    plain = values.float() if scales is None else dequantize_kv(values, scales)
    return quantize_kv(plain, dtype) if dtype in CODE_MAX else (plain.to(dtype), None)


def _check_answers(answers: list[Answer], expected: list[Answer]) -> None:
    for (tokens, logprobs), want in zip(answers, expected, strict=True):
        assert tokens == want[0]
        assert logprobs == pytest.approx(want[1], abs=LOGPROB_TOLERANCE)


def _check_arrived(cluster: InProcess, prompt: list[int]) -> None:
    """To the bit."""
    there, scales_there = _stored(cluster.nodes["decode-0"], prompt)
    values, scales = _converted(*_stored(cluster.nodes["prefill-0"], prompt), there.dtype)
    assert torch.equal(values.contiguous().view(torch.uint8), there.contiguous().view(torch.uint8))
    assert (scales is None) == (scales_there is None)
    assert scales is None or torch.equal(scales, scales_there)
    assert values.float().abs().sum() > 0
