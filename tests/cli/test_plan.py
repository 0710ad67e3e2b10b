"""`baton plan`: the deployment's file that it writes, and what it says of the search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from baton.cli.plan_file import deployment, opening, write_checked
from baton.cli.plan_table import as_json, nodes, table
from baton.core.request import Slo
from baton.runtime.config import load_config
from baton.sim.experiments.estimate import Estimate
from baton.sim.experiments.plan import Layout, Plan, Tried
from baton.sim.experiments.setting import Split
from baton.sim.profiles import profile
from tests.cli.invoke import Cli, Done

LIGHT = "--rate 5 --requests 20 --prompt-tokens 100-900 --output-tokens 5-9"
TARGETS = "--ttft 0.5 --tpot 0.03"
TWO, FOUR = profile("llama-3-70b@h100x2"), profile("llama-3-70b@h100x4")
SLO = Slo(1.0, 0.05)


def planned(cli: Cli, out: Path, *more: str) -> Done:
    line = f"{LIGHT} {TARGETS} --gpus 2 --candidates 1 --workers 1 --precision 0.5 -o {out}"
    return cli("plan", *line.split(), *more)


def test_a_plan_is_a_deployment_s_file(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "deployment.yaml"
    done = planned(cli, out, "--json", "--model", "/models/m")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["rate_per_device"] == pytest.approx(found["rate"] / 2)
    assert found["rate"] < 2 / (500 * 2 * 8e9 / 1e15)  # prompts of 500 tokens, two H100 at their peak
    config = load_config(out).resolved()
    assert config.node_count == 2
    assert config.model == "/models/m"
    assert config.router.slo.ttft_s == 0.5
    assert config.router.planner.enabled
    text = out.read_text()
    assert text.startswith("# ")
    assert "TODO" not in text
    assert "not served yet" in text
    refused = cli("config", "check", str(out))
    assert (refused.code, refused.out) == (2, "")
    assert "'cuda:0' is not supported yet, only cpu" in refused.err


def test_a_plan_without_a_model_says_that_one_is_missing(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "deployment.yaml"
    done = planned(cli, out, "--profile", "smollm2-cpu", "--ttft", "5", "--tpot", "1")
    assert done.code == 0, done.err
    assert "found in" in done.out
    assert "known of it at degree 1 only" in done.out
    assert load_config(out).prefill.tensor_parallel == 1
    assert "# TODO: `model` is a placeholder for the folder that holds smollm2-cpu." in out.read_text()
    assert load_config(out).model == "/path/to/smollm2-cpu"
    assert "not served yet" not in out.read_text()
    assert cli("config", "check", str(out)).code == 0


def test_a_plan_s_help_speaks_of_plans(cli: Cli) -> None:
    assert "--compare" not in cli("plan", "--help").out


def mixed() -> Plan:
    """As found by a search: two prefill nodes of two devices, one decode node of four."""
    layout = Layout(Split(2, 1), TWO, FOUR, Estimate(4.0, 6.0, "decode: reading KV, 90 rows (TPOT)"))
    other = Layout(Split(0, 0, 2), FOUR, None, Estimate(3.0, 3.5, "both: arithmetic, steps of 50.0 ms"))
    best = Tried(layout, "reject", 3.6, 0.9, 0.04)
    return Plan(best, (best, Tried(layout, "defer", 3.2, 0.95, 0.04)), (other,))


def test_degrees_are_written_and_read(cli: Cli, tmp_path: Path) -> None:
    file, plan = tmp_path / "d.yaml", mixed()
    write_checked(file, deployment(plan, SLO, "/models/m"), opening(plan, "/models/m", "baton plan ..."))
    config = load_config(file)
    assert (config.prefill.count, config.prefill.tensor_parallel) == (2, 2)
    assert config.prefill.devices == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert (config.decode.count, config.decode.tensor_parallel) == (1, 4)
    assert config.decode.devices == ("cuda:4", "cuda:5", "cuda:6", "cuda:7")
    assert config.router.admission.policy == "reject"
    assert not config.router.planner.enabled, "two devices hold next to no KV, and would decode too slowly"
    assert config.decode.engine.num_blocks == FOUR.num_blocks
    assert "tensor_parallel above 1 is planned for but not served yet" in file.read_text()
    shown = yaml.safe_load(cli("config", "show", "-f", str(file)).out)
    assert (shown["prefill"]["tensor_parallel"], shown["both"]["tensor_parallel"]) == (2, 1)


def test_a_plan_can_be_simulated_as_it_was_found(cli: Cli, tmp_path: Path) -> None:
    file, plan = tmp_path / "d.yaml", mixed()
    write_checked(file, deployment(plan, SLO, None), [])
    line = f"{LIGHT} --profile llama-3-70b@h100 --config {file}"
    assert json.loads(cli("simulate", "--json", *line.split()).out)["devices"] == 8


@pytest.mark.parametrize("command", ["config check", "serve -f"])
def test_more_than_one_device_per_node_does_not_start(cli: Cli, tmp_path: Path, command: str) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("prefill: {count: 1, devices: [cpu, cpu], tensor_parallel: 2}\ndecode: {count: 1}\n")
    done = cli(*command.split(), str(file))
    assert (done.code, done.out) == (2, "")
    expected = "error: prefill.tensor_parallel: 2 is not supported yet, only 1: a node runs on one device\n"
    assert done.err.endswith(expected)


def test_a_plan_of_one_device_per_node_says_nothing_of_degrees(tmp_path: Path) -> None:
    one = profile("smollm2-cpu")
    best = Tried(
        Layout(Split(1, 1), one, None, Estimate(1.0, 1.2, "prefill: computing prompts")), "defer", 0.9
    )
    plan = Plan(best, (best,), ())
    content = deployment(plan, SLO, "m")
    assert "tensor_parallel" not in content["prefill"]
    assert content["prefill"]["devices"] == ["cpu"]
    assert "tensor_parallel" not in " ".join(opening(plan, "m", ""))


def test_more_devices_than_a_host_has_are_said_to_be_of_several() -> None:
    layout = Layout(Split(2, 2), FOUR, None, Estimate(4.0, 6.0, ""))
    best = Tried(layout, "defer", 3.6)
    assert any(
        "numbered as if they were of one host" in line for line in opening(Plan(best, (), ()), None, "")
    )
    assert not any("numbered as if" in line for line in opening(mixed(), None, ""))


def test_the_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    plan = mixed()
    console = Console(width=200)
    console.print(table(plan, SLO))
    shown = capsys.readouterr().out
    assert "3.6 requests/s, 0.45 per device, of llama-3-70b@h100" in shown
    assert "2 TP2 prefill, 1 TP4 decode, rejecting" in shown
    assert "decode: reading KV, 90 rows (TPOT)" in shown
    assert "TTFT P90 900 ms of 1.00 s, TPOT P90 40.0 ms of 50.0 ms" in shown
    [bounded] = [line for line in shown.splitlines() if "2 TP4 both" in line]
    assert bounded.split()[3:8] == ["8", "<", "3.5", "<", "0.438"]
    h200 = profile("llama-3-70b@h200x4")
    several = Layout(Split(1, 1), TWO, h200, Estimate(1.0, 1.0, ""))
    assert nodes(several, several=True) == "1 h100 TP2 prefill, 1 h200 TP4 decode"


def test_json_holds_what_the_table_does() -> None:
    found = as_json(mixed(), ["a note"], Path("d.yaml"))
    assert found["pools"] == [
        {"role": "prefill", "nodes": 2, "tensor_parallel": 2, "profile": "llama-3-70b@h100x2"},
        {"role": "decode", "nodes": 1, "tensor_parallel": 4, "profile": "llama-3-70b@h100x4"},
    ]
    assert [each["rate_per_device"] for each in found["tried"]] == pytest.approx([0.45, 0.4])
    assert found["tried"][0]["held_back_by"] == "decode: reading KV, 90 rows (TPOT)"
    assert [each["most"] for each in found["estimated"]] == [3.5]
    assert found["notes"] == ["a note"]
    nothing = Tried(mixed().best.layout, "defer", 0.0)
    assert as_json(Plan(nothing, (nothing,), ()), [], Path("d.yaml"))["tried"][0]["ttft_p90_s"] is None
