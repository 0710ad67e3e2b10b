"""`baton bench`: options, output, exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path

import pytest

from baton.bench.load.results import read, write
from baton.cli.bench import bench
from baton.cli.bench_run import Asked
from tests.bench.records import results, run
from tests.cli.invoke import Cli
from tests.cli.test_generate import shell
from tests.fakes import StubConfig, StubNode, router_with

FAST = "--prompt-tokens 9 --output-tokens 3 --duration 1 --settle 0 --cv 0 --max-lateness 10"


def test_every_option_arrives() -> None:
    assert list(signature(bench).parameters) == [field.name for field in fields(Asked)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "rate: give --rate, --rates or --find-rate"),
        ("--rate 1 --rates 1,2", "rate: either this or --rates"),
        ("--rates 1,x", "rates: write 0.5,1,2"),
        ("--rates 0", "rate: must be a positive number"),
        ("--find-rate", "find_rate: a search needs targets"),
        ("--find-rate --rates 1,2 --ttft 1", "rates: either these or --find-rate"),
        ("--rate 1 --text", "text: words need --tokenizer"),
        ("--rate 1 --body [1]", "body: is no JSON object"),
        ("--rate 1 --body {", "body: is not JSON"),
        ("--rate 1 --header x", "header: write Name: value"),
        ("--rate 1 --prefixes 3", "prefixes: write 4x128"),
        ("--rate 1 --prompt-tokens 0", "prompt-tokens: write 256"),
        ("--rate 1 --target nowhere", "target: 'nowhere': write grpc://host:port"),
        ("--rate 1 --trace none.jsonl", "error: none.jsonl: no such file"),
        ("--from none.json", "cannot read none.json"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_sent(cli: Cli, line: str, message: str) -> None:
    there = () if "--target" in line else ("--target", "grpc://127.0.0.1:1")
    done = cli("bench", *there, *line.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


async def test_a_deployment_is_measured_and_written(tmp_path: Path) -> None:
    async with router_with(StubNode(config=StubConfig(prefill_s=0.02))) as cluster:
        line = f"$BATON bench --rate 8 {FAST} --ttft 5 -o {tmp_path}/r.json --html {tmp_path}/r.html --check"
        code, out, err = await asyncio.to_thread(shell, line, cluster.app.address)
        await cluster.all_idle()
        assert (code, err) == (0, "")
        assert "baton" in out
        code, out, err = await asyncio.to_thread(
            shell, f"$BATON bench --rate 8 {FAST} --json", cluster.app.address
        )
        assert (code, err) == (0, "")
    assert json.loads(out)["pools"][0]["summary"]["goodput"]["attainment"] == 1.0
    kept = read(tmp_path / "r.json")
    assert kept.pools[0].summary.ok == 7
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


async def test_exit_codes_tell_late_from_missed() -> None:
    async with router_with(StubNode(config=StubConfig(prefill_s=0.2))) as cluster:
        missed = f"$BATON bench --rate 4 {FAST} --ttft 0.01"
        assert (await asyncio.to_thread(shell, missed, cluster.app.address))[0] == 0
        assert (await asyncio.to_thread(shell, f"{missed} --check", cluster.app.address))[0] == 4
        late = f"$BATON bench --rate 4 {FAST} --max-lateness 0"
        code, _, err = await asyncio.to_thread(shell, late, cluster.app.address)
        assert code == 3
        assert "does not count: the generator" in err


def test_nobody_there_is_a_failure(cli: Cli) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = cli("bench", "--target", f"http://127.0.0.1:{unused.getsockname()[1]}", "--rate", "1")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "nothing answers at" in done.err


def test_files_are_compared_and_shown_again(cli: Cli, tmp_path: Path) -> None:
    for name, slow in (("old", 1.0), ("new", 2.0)):
        write(results(run(slow=slow)), tmp_path / f"{name}.json")
    files = (str(tmp_path / "old.json"), str(tmp_path / "new.json"))
    done = cli("bench", "--compare", *files, "--html", str(tmp_path / "c.html"))
    assert done.code == 0
    assert "worse" in done.out
    assert "a: old: a, b: new: a, at 2/s" in done.out
    assert json.loads(cli("bench", "--compare", *files, "--json").out)["pairs"]
    assert "good/s" in cli("bench", "--from", files[0]).out
    assert cli("bench", "--from", files[1], "--check").code == 4
    assert json.loads(cli("bench", "--schema").out)["title"] == "Results"


def test_the_simulator_s_word_is_printed_beside(cli: Cli, tmp_path: Path) -> None:
    made = results(run())
    made.experiment = replace(made.experiment, prompt_tokens="16-64", output_tokens="4")
    made.targets = [replace(made.targets[0], nodes={"prefill": 1, "decode": 1})]
    write(made, tmp_path / "r.json")
    done = cli(
        "bench",
        "--from",
        str(tmp_path / "r.json"),
        "--twin",
        "smollm2-cpu-int8",
        "-o",
        str(tmp_path / "t.json"),
    )
    assert done.code == 0
    assert "predicted s" in done.out
    assert [twin.metric for twin in read(tmp_path / "t.json").twins] == [
        "TTFT P50",
        "TTFT P90",
        "TPOT P50",
        "TPOT P90",
    ]
    assert "no profile 'nothing'" in cli("bench", "--from", str(tmp_path / "r.json"), "--twin", "nothing").err
    made.targets = [replace(made.targets[0], nodes={})]
    write(made, tmp_path / "r.json")
    done = cli("bench", "--from", str(tmp_path / "r.json"), "--twin", "smollm2-cpu-int8")
    assert (done.code, done.err) == (
        1,
        "error: no run of a Baton deployment counts: there is nothing to simulate\n",
    )
