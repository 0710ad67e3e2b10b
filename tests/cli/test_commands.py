"""Commands that need no deployment, and what they say when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import baton
from baton.cli import deployments
from baton.cli.running import leaving
from baton.cli.waterfall import WIDTH, bar, rates, waterfall
from baton.core.errors import FailedPrecondition
from baton.proto.v1.inference_pb2 import Timings, Usage
from baton.runtime.config import from_json
from tests.cli.invoke import Cli


def test_commands_load_no_tensor_library_before_they_need_it() -> None:
    """They would take seconds to say what is wrong with their options."""
    code = "import sys, baton.cli.main; print(*({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_version(cli: Cli) -> None:
    assert cli("version").out.strip() == baton.__version__
    assert cli("--version").out.strip() == baton.__version__


@pytest.mark.parametrize("given", ["0", "-1", "nan", "1e300"])
def test_a_deadline_that_cannot_be_met_or_sent_is_refused_at_once(cli: Cli, given: str) -> None:
    done = cli("generate", "x", f"--timeout={given}")
    assert done.code == 2
    assert "must be greater than 0 and at most 1e+07" in done.err


def test_an_empty_question_is_refused_before_anything_starts(cli: Cli) -> None:
    done = cli("demo", " ")
    assert (done.code, done.err) == (2, "error: the prompt is empty\n")


def test_defaults_are_told(cli: Cli) -> None:
    for command, tokens in (("generate", 256), ("chat", 512)):
        words = cli(command, "--help").out
        assert f"[default: {tokens}; x>=1]" in words
        assert "[default: 0.0]" in words


def test_a_stop_says_what_it_waits_for() -> None:
    assert leaving(0) == "stopping; Ctrl-C again stops at once"
    assert leaving(1) == "finishing 1 request; Ctrl-C again stops at once"
    assert leaving(2).startswith("finishing 2 requests;")


def test_check_says_ok_or_lists_the_mistakes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("router: {port: 80}\n")
    assert cli("config", "check", str(path)).code == 0
    path.write_text("router: {prot: 80}\nmodel: 1\n")
    done = cli("config", "check", str(path))
    assert done.code == 2
    assert done.err.splitlines() == [
        f"error: {path}:1:10: router.prot: unknown key; did you mean port?",
        f"error: {path}:2:8: model: must be text, got 1 (put it in quotes)",
    ]


def test_check_tells_where_values_that_clash_were_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("decode:\n  engine: {quantization: fp8}\n")
    clash = "nodes whose weights differ would give different tokens, so they refuse to work together"
    done = cli("config", "check", str(path))
    assert done.code == 2
    told = f"quantization is auto in prefill.engine, fp8 in decode.engine: {clash}"
    assert done.err.splitlines() == [f"error: {path}:2:26: {told}"]
    path.write_text("router: {processes: 0}\n")
    told = "router.processes is 0: `registries` must name a router for the nodes"
    assert cli("config", "check", str(path)).err.splitlines() == [f"error: {path}:1:21: {told}"]
    monkeypatch.setenv("BATON_PREFILL__ENGINE__QUANTIZATION", "int8")
    done = cli("config", "show")
    told = f"quantization is int8 in prefill.engine, auto in decode.engine: {clash}"
    assert done.err.splitlines() == [f"error: environment BATON_PREFILL__ENGINE__QUANTIZATION: {told}"]
    monkeypatch.delenv("BATON_PREFILL__ENGINE__QUANTIZATION")
    done = cli("config", "show", "--set", "router.processes=0")
    told = "router.processes is 0: `registries` must name a router for the nodes"
    assert done.err.splitlines() == [f"error: flag router.processes: {told}"]


def test_show_prints_what_is_in_force(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("served_name: a\nrouter: {port: 1}\n")
    monkeypatch.setenv("BATON_ROUTER__PORT", "2")
    done = cli("config", "show", "--file", str(path), "--json", "--set", "prefill.count=3")
    config = from_json(done.out)
    assert (config.served_name, config.router.port, config.prefill.size) == ("a", 2, 3)
    again = yaml.safe_load(cli("config", "show", "--file", str(path), "--set", "prefill.count=3").out)
    assert again == json.loads(done.out)


def test_schema_is_json(cli: Cli) -> None:
    assert "router" in json.loads(cli("config", "schema").out)["properties"]


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"], ["admin", "cluster"]])
def test_without_a_deployment_the_error_says_what_to_do(cli: Cli, command: list[str]) -> None:
    done = cli(*command)
    assert done.code == 1
    assert done.err == (
        "error: no deployment runs here: start one with `baton serve`, or give --endpoint or BATON_ENDPOINT\n"
    )


def test_an_address_where_nothing_answers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.cli.calls.CONNECT_TIMEOUT_S", 0.3)
    monkeypatch.setenv("BATON_ENDPOINT", "127.0.0.1:1")
    assert cli("generate", "hi").err == "error: nothing answers at 127.0.0.1:1\n"
    done = cli("generate", "hi", "--endpoint", "nonsense")
    assert (done.code, done.err) == (2, "error: 'nonsense' is not host:port\n")


def test_role_names_are_checked(cli: Cli) -> None:
    done = cli("admin", "set-role", "prefill-0", "king", "--endpoint", "127.0.0.1:1")
    assert (done.code, done.err) == (2, "error: 'king' is no role: prefill, decode or both\n")


# ---- finding the deployment ------------------------------------------------------------------------------


def test_the_only_deployment_is_found_and_forgotten_when_it_ends() -> None:
    with deployments.announced("127.0.0.1:5", "m"):
        assert deployments.find_endpoint(None) == "127.0.0.1:5"
        assert deployments.find_endpoint("h:1") == "h:1"
    assert deployments.running() == []


def test_one_of_several_must_be_chosen() -> None:
    with deployments.announced("127.0.0.1:5", "m"):
        mine = deployments.runtime_folder() / f"{os.getpid()}.json"
        (deployments.runtime_folder() / "1.json").write_text(mine.read_text().replace(":5", ":6"))
        with pytest.raises(FailedPrecondition, match=r"127\.0\.0\.1:. \(m\), 127\.0\.0\.1:. \(m\)"):
            deployments.find_endpoint(None)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"pid": 999999999, "started_at": 0, "endpoint": "", "model": ""}']
)
def test_files_of_dead_launchers_are_removed(content: str) -> None:
    path = deployments.runtime_folder() / "7.json"
    path.write_text(content)
    assert deployments.running() == []
    assert not path.exists()


def test_a_folder_that_others_can_write_to_is_not_trusted() -> None:
    deployments.runtime_folder().chmod(0o777)
    with pytest.raises(FailedPrecondition, match="only this user"):
        deployments.running()


# ---- the waterfall ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "length", "total", "wanted"),
    [
        (0.0, 1.0, 1.0, (0, WIDTH)),
        (0.5, 0.5, 1.0, (WIDTH // 2, WIDTH // 2)),
        (0.0, 1e-9, 1.0, (0, 1)),
        (1.0, 0.0, 1.0, (WIDTH - 1, 0)),
        (1.0, 1e-9, 1.0, (WIDTH - 1, 1)),
        (0.0, 0.0, 0.0, (0, 0)),
    ],
)
def test_bars_stay_inside(start: float, length: float, total: float, wanted: tuple[int, int]) -> None:
    assert bar(start, length, total) == wanted


def test_what_was_not_measured_is_left_out() -> None:
    assert rates(Timings(total_s=1.0), Usage(prompt_tokens=3)) == "3 prompt tokens (0 cached), 0 made"
    full = rates(Timings(ttft_s=0.25, tpot_s=0.02, retries=1), Usage(prompt_tokens=3, completion_tokens=9))
    assert full.endswith("9 made; first token after 250.0 ms; 50.0 tokens/s; 1 retry")
    assert waterfall(Timings(), Usage())
