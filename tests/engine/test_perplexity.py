"""Perplexity through the runner: windows, a dense reference, and what formats cost on real text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from baton.core.errors import InvalidArgument
from baton.engine.config import EngineConfig
from baton.engine.eval.perplexity import TEXT, Perplexity, Windows, blocks_for, perplexity
from baton.engine.loader import load
from baton.router.text.load import load_tokenizer
from tests.models import VOCAB_SIZE, Reference, write_model

PREFIX = [1, 2]


def _measured(
    model: str, token_ids: list[int], windows: Windows, prefix: list[int], **how: str
) -> Perplexity:
    loaded = load(EngineConfig(model, block_size=4, max_model_len=windows.window + len(prefix), **how))
    runner = loaded.runner(blocks_for(windows, 4, len(prefix)))
    return perplexity(runner, token_ids, windows, block_size=4, prefix=prefix)


@pytest.mark.parametrize("window", [2, 3, 8])
@pytest.mark.parametrize("length", [2, 3, 7, 8, 9, 16, 17, 30])
def test_windows_predict_every_token_once(window: int, length: int) -> None:
    for stride in range(1, window + 1):
        seen = []
        for start, first, end in Windows(window, stride).over(length):
            assert 0 < end - start <= window
            assert start < first < end
            assert start == 0 or first - start >= window - stride or end == length
            seen += range(first, end)
        # Windows that do not overlap have nothing to predict their first token from.
        skipped = range(window, length, window) if stride == window else ()
        assert seen == [i for i in range(1, length) if i not in skipped]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("t") / "T", "T")


@pytest.mark.parametrize(("window", "stride"), [(64, 64), (16, 16), (16, 5), (17, 1)])
@pytest.mark.parametrize("prefix", [[], PREFIX])
def test_equals_a_dense_reference(folder: Path, window: int, stride: int, prefix: list[int]) -> None:
    noise = torch.Generator().manual_seed(3)
    token_ids = torch.randint(0, VOCAB_SIZE, (43,), generator=noise).tolist()
    reference, windows = Reference(folder), Windows(window, stride)
    total, count = 0.0, 0
    for start, first, end in windows.over(len(token_ids)):
        logprobs = reference.logprobs([*prefix, *token_ids[start:end]])
        for i in range(first, end):
            total -= float(logprobs[len(prefix) + i - start - 1, token_ids[i]])
            count += 1
    found = _measured(str(folder), token_ids, windows, prefix)
    assert found.tokens == count
    assert found.nll == pytest.approx(total / count, abs=1e-4)
    assert found.value == pytest.approx(math.exp(total / count), rel=1e-4)


def test_stale_blocks_do_not_matter(folder: Path) -> None:
    token_ids = list(range(5, 45))
    windows = Windows(16, 8)
    loaded = load(EngineConfig(str(folder), block_size=4, max_model_len=16))
    runner = loaded.runner(blocks_for(windows, 4))
    first = perplexity(runner, token_ids, windows, block_size=4)
    assert perplexity(runner, token_ids, windows, block_size=4) == first


def test_what_cannot_be_measured_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="text: a text of 1 tokens"):
        _measured(str(folder), [5], Windows(8, 8), [])
    for window, stride, field in ((1, 1, "window"), (8, 0, "stride"), (8, 9, "stride")):
        with pytest.raises(InvalidArgument, match=f"^{field}: "):
            Windows(window, stride)


# Those of the whole text, widened by what so short a piece may be off by.
BOUNDS = {
    ("int8", "auto"): 0.01,
    ("int8-w8a8", "auto"): 0.02,
    ("int4", "auto"): 0.08,
    ("none", "int8"): 0.01,
    ("none", "fp8"): 0.02,
}
PIECE = slice(5_000, 5_512)


@pytest.fixture(scope="module")
def piece() -> list[int]:
    from baton.engine.weights.locate import locate

    return load_tokenizer(str(locate("demo"))).encode(TEXT.read_text(encoding="utf-8"))


def test_the_text_is_long_enough(piece: list[int]) -> None:
    assert len(piece) >= 20_480


def test_formats_cost_no_more_than_they_may(piece: list[int]) -> None:
    token_ids, windows = piece[PIECE], Windows(256, 256)
    reference = _measured("demo", token_ids, windows, [], quantization="none").value
    assert 10 < reference < 60
    for (quantization, kv_dtype), bound in BOUNDS.items():
        found = _measured("demo", token_ids, windows, [], quantization=quantization, kv_dtype=kv_dtype).value
        assert abs(found / reference - 1) <= bound, f"{quantization} weights, {kv_dtype} KV"
        assert found != reference, "the format was not used"
