"""What one step gives: which rows sample, prompt logprobs, empty rows, timings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine import torch_runner
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from tests.models import Reference, prompt_of, write_model

GREEDY = SamplingParams(temperature=0.0, logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("t") / "T", "T")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load(EngineConfig(str(folder), block_size=4))


def _row(prompt: list[int], start: int, end: int, first_block: int, *, sample: bool) -> Row:
    table = list(range(first_block, first_block + -(-end // 4)))
    return Row(
        (str(first_block), 0), prompt[start:end], start, table, sample, GREEDY, prompt[:end], len(prompt)
    )


def test_only_rows_that_sample_get_a_token(loaded: LoadedModel, folder: Path) -> None:
    one, two = prompt_of(9), prompt_of(6)
    runner = loaded.runner(16)
    batch = Batch(
        (
            _row(one, 0, 5, 1, sample=False),
            _row(two, 0, 6, 5, sample=True),
            _row(two, 0, 0, 9, sample=False),
        ),
        clear=tuple(range(1, 8)),
    )
    out = runner.run(batch)
    assert [row.token_id is None for row in out.rows] == [True, False, True]
    assert [row.seq for row in out.rows] == [row.seq for row in batch.rows]
    assert out.rows[1].token_id == Reference(folder).greedy(two, 1).token_ids[0]
    assert (out.tokens, out.context_tokens) == (11, 11)
    assert 0 < out.forward_s <= out.duration_s


def test_a_step_may_sample_nothing_or_hold_nothing(loaded: LoadedModel) -> None:
    runner = loaded.runner(16)
    assert runner.run(Batch(())).rows == ()
    out = runner.run(Batch((_row(prompt_of(9), 0, 5, 1, sample=False),), clear=(1, 2)))
    assert out.rows[0].token_id is None
    # The last layer's KV was written all the same.
    assert runner.pool.tensor[1, -1].abs().sum() > 0
    assert runner.pool.tensor[2, -1, :, 1:].abs().sum() == 0


def test_clearing_happens_before_the_rows_run(loaded: LoadedModel) -> None:
    runner = loaded.runner(16)
    runner.pool.tensor.fill_(7.0)
    runner.run(Batch((_row(prompt_of(5), 0, 5, 1, sample=True),), clear=(1, 2)))
    assert runner.pool.tensor[2, :, :, 1:].eq(0).all()
    assert runner.pool.tensor[2, :, :, 0].abs().sum() > 0
    assert runner.pool.tensor[3].eq(7).all()


def test_logits_of_a_long_prompt_are_made_in_pieces(
    loaded: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(41)
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)
    row = Row(("a", 0), prompt, 0, list(range(1, 12)), True, sampling, prompt, len(prompt))
    runner = loaded.runner(16)
    widths: list[int] = []
    logits = loaded.model.logits

    def recorded(hidden: torch.Tensor) -> torch.Tensor:
        widths.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(torch_runner, "_LOGIT_ROWS", 16)
    monkeypatch.setattr(loaded.model, "logits", recorded)
    out = runner.run(Batch((row,), clear=tuple(range(1, 12)))).rows[0]
    assert widths == [16, 16, 8, 1]
    dense = Reference(folder).logprobs(prompt)
    want = [float(dense[i, token]) for i, token in enumerate(prompt[1:])]
    assert [one.logprob for one in out.prompt_logprobs] == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize(
    ("blocks", "limit", "want"), [(1000, None, 512), (1000, 64, 64), (9, 64, 32), (9, None, 32)]
)
def test_longest_request(folder: Path, blocks: int, limit: int | None, want: int) -> None:
    loaded = load(EngineConfig(str(folder), block_size=4, max_model_len=limit))
    assert loaded.info(blocks).max_model_len == want


@pytest.mark.parametrize("variant", ["T", "gemma2"])
def test_half_precision_stays_near_the_reference(variant: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / variant, variant)
    loaded = load(EngineConfig(str(folder), block_size=4, dtype="bfloat16"))
    runner = loaded.runner(16)
    assert runner.pool.tensor.dtype == torch.bfloat16
    prompt = prompt_of(13)
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)
    rows = [
        Row(("a", 0), prompt[start:end], start, [1, 2, 3, 4], end == 13, sampling, prompt, 13)
        for start, end in ((0, 6), (6, 12), (12, 13))
    ]
    outputs = [runner.run(Batch((row,), clear=(1, 2, 3, 4) if not row.start else ())) for row in rows]
    got = [one.logprob for out in outputs for one in out.rows[0].prompt_logprobs]
    dense = Reference(folder).logprobs(prompt)
    want = [float(dense[i, token]) for i, token in enumerate(prompt[1:])]
    errors = [abs(a - b) for a, b in zip(got, want, strict=True)]
    # These models' logits span tens; eight bits of mantissa leave some tenths of doubt.
    assert sum(errors) / len(errors) < 0.5
