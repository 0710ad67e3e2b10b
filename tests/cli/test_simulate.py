"""`baton simulate` and `baton plan`: options, output, files, exit codes."""

from __future__ import annotations

import json
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from baton.cli.plan import plan
from baton.cli.plan_run import Wanted
from baton.cli.simulate import simulate
from baton.cli.simulate_asked import Asked
from tests.cli.invoke import Cli

LIGHT = "--rate 5 --requests 20 --prompt-tokens 100-900 --output-tokens 5-9"
TARGETS = "--ttft 0.5 --tpot 0.03"


def test_every_option_arrives() -> None:
    for command, values in ((simulate, Asked), (plan, Wanted)):
        assert set(signature(command).parameters) == {field.name for field in fields(values)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("simulate", "rate: give --rate"),
        ("simulate --rate 1 --prompt-tokens 0", "prompt-tokens: write 256"),
        ("simulate --rate 1 --prefixes 3", "prefixes: write 4x128"),
        ("simulate --rate 1 --ttft -1", "slo.ttft_s: must be greater than 0"),
        ("simulate --rate 1 --policy best", "policy: is 'best'; there are Baton, random"),
        ("simulate --rate 1 --profile abacus", "profile: no profile 'abacus'"),
        ("simulate --rate 1 --prefill 0", "nodes: no nodes"),
        (
            "simulate --rate 1 --prefill 2 --decode 0",
            "nodes: none is there for answers: say --decode or --both",
        ),
        (
            "simulate --rate 1 --decode 2 --prefill 0",
            "nodes: none is there for prompts: say --prefill or --both",
        ),
        ("simulate --rate 1 --decode-profile abacus", "profile: no profile 'abacus'"),
        (
            "simulate --compare --rate 1 --ttft 1 --decode-profile smollm2-cpu",
            "decode-profile: goes with a single run",
        ),
        ("simulate --trace none.jsonl", "error: none.jsonl: no such file or directory\n"),
        ("simulate --trace none.json", "error: none.json: no such file or directory\n"),
        ("simulate --trace a.csv --trace b.csv", "trace: give one trace"),
        ("simulate --compare --rate 1", "ttft: say targets"),
        ("simulate --compare --rate 1 --ttft 1 --only best", "only: is 'best'"),
        ("simulate --rate 1 --config none.yaml", "none.yaml"),
        ("plan --rate 1", "ttft: say targets"),
        ("plan --ttft 0.0001", "ttft: no profile meets the targets"),
        ("plan --ttft 1 --profile llama-3.1-70b@h100 --gpus 2", "devices: 2 are too few"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, line: str, message: str) -> None:
    done = cli(*line.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_run_is_told_and_written(cli: Cli, tmp_path: Path) -> None:
    files = f"--out {tmp_path}/r.json --html {tmp_path}/r.html"
    done = cli("simulate", *f"{LIGHT} {TARGETS} {files}".split())
    assert (done.code, done.err) == (0, "")
    assert "TTFT" in done.out
    assert "100.0%" in done.out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["summary"]["requests"] == found["summary"]["completed"] == 20
    assert {stay["role"] for stay in found["roles"]} == {"prefill", "decode"}
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Roles" in page


def test_a_run_without_targets_speaks_of_none(cli: Cli) -> None:
    assert "within targets" in cli(*f"simulate {LIGHT} {TARGETS}".split()).out
    done = cli(*f"simulate {LIGHT}".split())
    assert "within targets" not in done.out
    assert "/s served" in done.out


def test_the_same_seed_gives_the_same_run(cli: Cli) -> None:
    first, again, other = (
        cli("simulate", "--json", *f"{LIGHT} {TARGETS} --seed {seed}".split()).out for seed in (1, 1, 2)
    )
    assert json.loads(first) == json.loads(again) != json.loads(other)


def test_nodes_and_router_come_from_a_deployments_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("prefill: {count: 2}\ndecode: {count: 1}\nrouter: {planner: {enabled: true}}\n")
    found = json.loads(cli("simulate", "--json", *f"{LIGHT} --config {file} --decode 3".split()).out)
    assert sorted(found["busy"]) == ["d0", "d1", "d2", "p0", "p1"]


def test_a_trace_is_replayed_at_another_pace_under_a_published_policy(cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:{i:02d},{500 + i},7" for i in range(30)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    line = f"--trace {trace} --rate 10 --requests 15 --policy Mooncake {TARGETS}"
    found = json.loads(cli("simulate", "--json", *line.split()).out)
    assert found["rate"] == pytest.approx(10.0)
    assert found["summary"]["requests"] == 15
    assert found["told"]["policy"] == "Mooncake"


def test_policies_are_compared(cli: Cli, tmp_path: Path) -> None:
    only = ("--only", "Baton", "--only", "round robin")
    line = f"--requests 20 --prompt-tokens 4000 --output-tokens 10 {TARGETS} --nodes 2 --workers 1"
    done = cli(
        "simulate", "--compare", *line.split(), *only, "--precision", "0.4", "--html", f"{tmp_path}/c.html"
    )
    assert done.code == 0
    assert "round robin" in done.out
    assert "Policies compared" in (tmp_path / "c.html").read_text()


def test_a_burst_is_called_one_and_its_goodput_is_what_nodes_can_do(cli: Cli) -> None:
    line = "--rate 5000 --requests 60 --prompt-tokens 1100 --output-tokens 20 --ttft 0.5"
    done = cli("simulate", *line.split())
    assert "a burst, no rate" in done.out
    assert "/s offered" in done.out
    found = json.loads(cli("simulate", "--json", *line.split()).out)
    prompt_s = 1100 * 2 * 8e9 / 1e15  # on the one H100 that computes prompts, at its peak
    assert 0.0 < found["summary"]["goodput_rps"] < 1 / prompt_s


def test_a_run_of_nodes_of_several_devices_tells_goodput_per_device(cli: Cli) -> None:
    pools = "--profile llama-3-70b@h100x2 --decode-profile llama-3-70b@h100x4 --prefill 2 --decode 1"
    line = f"{LIGHT} --ttft 5 --tpot 0.1 {pools}"
    found = json.loads(cli("simulate", "--json", *line.split()).out)
    assert found["devices"] == 4 + 4
    assert found["told"]["profile"] == "llama-3-70b@h100x2 and llama-3-70b@h100x4"
    done = cli("simulate", *line.split())
    assert f"{found['summary']['goodput_rps'] / 8:.3g} per device" in " ".join(done.out.split())
    assert "per device" not in cli("simulate", *f"{LIGHT} {TARGETS}".split()).out


def test_degrees_come_from_a_deployments_file_unless_the_profile_names_one(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("prefill: {count: 1, tensor_parallel: 2}\ndecode: {count: 1, tensor_parallel: 8}\n")

    def devices(name: str) -> float:
        line = f"{LIGHT} --config {file} --profile {name}"
        return json.loads(cli("simulate", "--json", *line.split()).out)["devices"]

    assert devices("llama-3-70b@h100") == 2 + 8
    assert devices("llama-3-70b@h100x4") == 4 + 4
    done = cli("simulate", *f"{LIGHT} --config {file} --profile smollm2-cpu".split())
    assert done.code == 2
    assert "at degree 1 only, not 2" in done.err
    file.write_text("prefill: {count: 1}\ndecode: {count: 1}\n")
    assert devices("llama-3-70b@h100") == 4 + 4, "the model's usual degree"
