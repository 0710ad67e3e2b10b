"""`baton eval` on a tiny model: every combination, compared with the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoke import Cli
from tests.models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("t") / "T", "T"))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog on the log; " * 20)
    return str(path)


def test_all_combinations_as_json(cli: Cli, model: str, text: str) -> None:
    sizes = ("--text", text, "--tokens", "60", "--window", "24", "--stride", "12")
    done = cli(
        "eval", model, *sizes, "--quantization", "none,int8", "--kv-dtype", "auto", "--kv-dtype=fp8", "--json"
    )
    assert done.code == 0, done.err
    results = json.loads(done.out)
    assert [(r["quantization"], r["kv_dtype"]) for r in results] == [
        ("none", "auto"),
        ("none", "fp8"),
        ("int8", "auto"),
        ("int8", "fp8"),
    ]
    first = results[0]
    assert first["change"] == 0
    assert first["tokens"] == 59
    for result in results[1:]:
        assert result["change"] == pytest.approx(result["perplexity"] / first["perplexity"] - 1)
        assert 0 < abs(result["change"]) < 1
    assert results[2]["weights_bytes"] < first["weights_bytes"] / 2


def test_a_table_for_people(cli: Cli, model: str, text: str) -> None:
    done = cli(
        "eval", model, "--text", text, "--tokens", "40", "--window", "24", "--quantization", "none,int4"
    )
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert "perplexity" in lines[0]
    assert len(lines) == 3
    assert lines[2].split()[1] == "int4"
    assert "%" in lines[2]
    assert "%" not in lines[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quantization", "int3"], "quantization: must be one of auto, none"),
        (["--kv-dtype", "int4"], "kv_dtype: must be one of"),
        (["--window", "8", "--stride", "9"], "stride: must be from 1"),
        (["--window", "4096", "--stride", "5"], "window: the model sees 512 tokens at most"),
        (["--text", "/nowhere"], "text: cannot read /nowhere"),
    ],
)
def test_mistakes_are_told(cli: Cli, model: str, text: str, options: list[str], message: str) -> None:
    done = cli("eval", model, "--text", text, *options)
    assert done.code == 2
    assert message in done.err


def test_what_was_measured_outlives_a_combination_that_cannot_run(
    cli: Cli, text: str, tmp_path: Path
) -> None:
    model = str(write_model(tmp_path / "gemma2", "gemma2"))  # transformers' own code runs it, unquantised
    sizes = ("--text", text, "--tokens", "40", "--window", "24")
    done = cli("eval", model, *sizes, "--quantization", "none,int4", "--json")
    assert done.code == 2
    assert [result["quantization"] for result in json.loads(done.out)] == ["none"]
    assert "quantization" in done.err
