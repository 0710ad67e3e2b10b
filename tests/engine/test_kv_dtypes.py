"""Quantised KV in a whole model: every way to run a text attends over what the cache's codes and scales say.

Prompt chunks, single tokens and mixed steps must agree with each other and with plain attention over the
dequantised cache. To rounding, that is, but a last bit of difference tips a code over now and then, and this
model makes much of little: hence the tolerance, a small part of what quantising does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.engine.models.llama import LlamaModel
from baton.engine.torch_runner import TorchRunner
from baton.kernels.attention import AttentionParams, AttentionPlan, KvLayer, reference
from baton.kernels.attention.kv_layer import dequantize_kv
from baton.kernels.backend import choose
from tests.models import Reference, prompt_of, write_model

TOLERANCE = 0.02  # of a logprob
BLOCK = 4
TEXT = prompt_of(23, seed=3)
TABLE = [5, 2, 9, 7, 1, 8]
LISTING = SamplingParams(temperature=0.0, logprobs=0, prompt_logprobs=0)
# How the text is cut into steps.
CUTS = {
    "one prompt": [23],
    "chunks": [7, 8, 8],
    "token by token": [1] * 23,
    "a chunk, then token by token": [11] + [1] * 12,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("kv") / "T", "T")


@pytest.fixture(scope="module", params=["int8", "fp8"])
def loaded(folder: Path, request: pytest.FixtureRequest) -> LoadedModel:
    return load(EngineConfig(str(folder), kv_dtype=request.param, block_size=BLOCK))


@pytest.fixture(scope="module")
def plain(folder: Path, loaded: LoadedModel) -> LoadedModel:
    """The same model and cache; attention is that of the reference, over the dequantised cache in fp64."""
    same = load(replace(loaded.config, backend="torch"))
    assert isinstance(same.model, LlamaModel)
    ops = replace(choose(torch.device("cpu"), "torch"), attention=_over_dequantised)
    return replace(same, model=LlamaModel(same.model.config, same.model.decoder, ops))


def _over_dequantised(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, params: AttentionParams
) -> torch.Tensor:
    assert layer.scales is not None
    if layer.codes.dtype == torch.int8:  # native rounds queries and weights then: see kernels.attention
        return reference.attention(q.double(), layer, plan, params, rounded=True).float()
    plain = KvLayer(dequantize_kv(layer.codes, layer.scales, torch.float64))
    return reference.attention(q.double(), plain, plan, params).float()


def _row(start: int, end: int, table: Sequence[int] = TABLE) -> Row:
    return Row(("r", 0), TEXT[start:end], start, table, end == len(TEXT), LISTING, TEXT, len(TEXT))


def _listing(runner: TorchRunner, cuts: list[int]) -> list[float]:
    """Logprobs of all tokens of the text but the first, and of the one that follows it."""
    found: list[float] = []
    start = 0
    runner.run(Batch((), clear=tuple(TABLE)))
    for length in cuts:
        out = runner.run(Batch((_row(start, start + length),))).rows[0]
        found += [one.logprob for one in out.prompt_logprobs]
        if out.logprobs is not None:
            found.append(out.logprobs.logprob)
        start += length
    assert len(found) == len(TEXT)
    return found


def test_every_way_to_run_a_text_gives_the_same(
    loaded: LoadedModel, plain: LoadedModel, folder: Path
) -> None:
    want = _listing(plain.runner(12), CUTS["one prompt"])
    for cuts in CUTS.values():
        assert _listing(loaded.runner(12), cuts) == pytest.approx(want, abs=TOLERANCE)
    exact = Reference(folder).logprobs(TEXT)[range(len(TEXT) - 1), TEXT[1:]].tolist()
    differences = [abs(a - b) for a, b in zip(exact, want, strict=False)]
    assert max(differences) > 3 * TOLERANCE, "the cache is not quantised"


def test_a_mixed_step_gives_the_same_as_its_rows_alone(loaded: LoadedModel) -> None:
    runner = loaded.runner(24)
    others = [block + 12 for block in TABLE]
    want = _listing(runner, CUTS["one prompt"])[-1]
    runner.run(Batch((_row(0, 22), _row(0, 9, others)._replace(seq=("s", 0)))))
    out = runner.run(Batch((_row(22, 23), _row(9, 23, others)._replace(seq=("s", 0)))))
    assert [row.logprobs.logprob for row in out.rows] == pytest.approx([want, want], abs=TOLERANCE)


def test_the_stored_scale_is_what_counts(loaded: LoadedModel, plain: LoadedModel) -> None:
    """A hundred times the values of one layer changes the next token as it does for plain attention."""
    following = {}
    for name, model in (("ours", loaded), ("plain", plain)):
        runner = model.runner(12)
        runner.run(Batch((_row(0, 22),)))
        before = runner.run(Batch((_row(22, 23),))).rows[0].logprobs
        scales = runner.pool.layer(2).scales
        assert scales is not None
        scales[:, 1] *= 100
        after = runner.run(Batch((_row(22, 23),))).rows[0].logprobs
        assert before is not None
        assert after is not None
        following[name] = (before.logprob, after.logprob, after.token_id)
    assert following["ours"] == pytest.approx(following["plain"], abs=TOLERANCE)
    assert abs(following["ours"][0] - following["ours"][1]) > 0.1


def test_a_pool_of_the_same_bytes_holds_more(folder: Path, loaded: LoadedModel) -> None:
    half = load(EngineConfig(str(folder), kv_dtype="bfloat16", block_size=BLOCK))
    # head_dim is 16 here; with 64 it is 1.94 times as much.
    assert half.kv_token_bytes / loaded.kv_token_bytes == pytest.approx(32 / 18)
