"""`baton serve` with real processes: up and down, refused where it cannot work, gone when killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from baton.runtime.child import PARENT_ENV
from tests.models import write_model
from tests.patience import Patience

BATON = str(Path(sys.executable).with_name("baton"))
NO_NODES = ("--prefill=0", "--decode=0", "--log-level=warning")
START_S = 90.0  # for a machine that is busy with other things


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@contextmanager
def serving(*args: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A launcher that is ready, and what it said; it is killed at the end if it still runs."""
    launcher = subprocess.Popen(
        [BATON, "serve", "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    with launcher.stdout, launcher.stderr:
        try:
            line = launcher.stdout.readline()
            assert line, launcher.stderr.read()
            yield launcher, json.loads(line)
        finally:
            launcher.kill()
            launcher.wait()


def baton(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BATON, *args], capture_output=True, text=True, timeout=START_S)


def fetch(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


def children_of(launcher: int) -> list[int]:
    """Processes that were started by this launcher, also after its end."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(PARENT_ENV) == str(launcher)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def gone_within(launcher: int, seconds: float) -> bool:
    patience = Patience(seconds)
    while children_of(launcher):
        if not patience.lasts():
            return False
    return True


def refused(*args: str) -> str:
    """The message of a start that must fail; it leaves nothing behind."""
    launcher = subprocess.Popen(
        [BATON, "serve", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = launcher.communicate(timeout=START_S)
    assert launcher.returncode not in (0, -signal.SIGKILL)
    assert out == ""
    assert "Traceback" not in err
    assert children_of(launcher.pid) == []
    return err.splitlines()[-1]


def test_a_deployment_from_start_to_end(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"model: {model}\nserved_name: tiny\nengine: {{num-blocks: 64, prefix_caching: false}}\n")
    options = ("--config", str(file), "--set=engine.block_size=4", "--log-level=warning")
    with serving(*options) as (launcher, said):
        assert [process["name"] for process in said["processes"]] == ["router-0", "prefill-0", "decode-0"]
        assert len(children_of(launcher.pid)) == 3
        check_settings()
        check_answers(said["endpoint"])
        check_http(said["http"])
        for process in said["processes"]:
            check_probes(process["metrics"])
        check_cluster_metrics(said["processes"][0]["metrics"])
        check_steering()
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(START_S) == 0
        assert children_of(launcher.pid) == []
    assert "no deployment runs here" in baton("admin", "config").stderr


def check_settings() -> None:
    """What was written is in force. The deployment is found without an endpoint."""
    config = json.loads(baton("admin", "config").stdout)
    decode = config["decode"]["engine"]
    assert (config["served_name"], config["engine"]["num_blocks"]) == ("tiny", 64)
    assert (decode["prefix_caching"], decode["block_size"]) == (False, 4)


def check_http(url: str) -> None:
    models = json.loads(fetch(url.removeprefix("http://").partition("/")[0], "/v1/models"))
    assert [model["id"] for model in models["data"]] == ["tiny"]


def check_answers(endpoint: str) -> None:
    done = baton("generate", "abc", "--max-tokens=5", "--temperature=0", "--logprobs=2", "--json")
    answer = json.loads(done.stdout)
    count = len(answer["token_ids"])
    assert 1 <= count <= 5
    assert answer["usage"]["completion_tokens"] == count
    assert [len(item["top"]) for item in answer["logprobs"]] == [2] * count
    assert answer["finish_reason"] in ("length", "stop")
    assert answer["timings"]["total_s"] > 0
    text = baton("generate", "abc", "--max-tokens=5", "--temperature=0", "--endpoint", endpoint)
    assert text.stdout == answer["text"] + "\n"
    bad = baton("generate", "abc", "--temperature=-1")
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: ")
    assert "temperature" in bad.stderr


def check_probes(address: str) -> None:
    assert fetch(address, "/health/live") == "ok\n"
    assert fetch(address, "/health/ready") == "ok\n"
    metrics = metrics_with(address, 'vllm:num_requests_running{model_name="tiny"} 0.0')
    assert not [line for line in metrics.splitlines() if line.endswith(" NaN")]


def check_cluster_metrics(router: str) -> None:
    for role in ("prefill", "decode"):
        metrics_with(router, f'baton_node_role{{model_name="tiny",node="{role}-0",role="{role}"}} 1.0')
        metrics_with(router, f'baton_nodes{{model_name="tiny",role="{role}",state="up"}} 1.0')


def metrics_with(address: str, line: str) -> str:
    """They may be half a second old."""
    patience = Patience(START_S)
    while line not in (metrics := fetch(address, "/metrics")):
        assert patience.lasts(), f"no {line} in {metrics}"
        time.sleep(0.05)
    return metrics


def check_steering() -> None:
    state = json.loads(baton("admin", "cluster", "--json").stdout)
    assert {node["registration"]["node_id"] for node in state["nodes"]} == {"prefill-0", "decode-0"}
    assert baton("admin", "drain", "decode-0").returncode == 0
    assert "draining" in baton("admin", "cluster").stdout


def test_a_killed_launcher_takes_its_children_along(model: Path) -> None:
    with serving(str(model), "--both=1", "--set=engine.num_blocks=8", "--log-level=warning") as (launcher, _):
        assert len(children_of(launcher.pid)) == 2
        launcher.kill()
        launcher.wait()
        assert gone_within(launcher.pid, 5.0)


def test_several_routers_on_one_port_and_nobody_else() -> None:
    with serving("demo", *NO_NODES, "--set=router.processes=2") as (_, said):
        addresses = {process["address"] for process in said["processes"]}
        assert addresses == {said["endpoint"]}
        registries = {process["registry"] for process in said["processes"]}
        assert len(registries) == 2
        routers = {baton("admin", "cluster", "--endpoint", r).stdout.split()[-1] for r in registries}
        assert len(routers) == 2
        together = json.loads(baton("admin", "cluster", "--json").stdout)
        assert {router["router_id"] for router in together["routers"]} == routers
        port = said["endpoint"].rpartition(":")[2]
        for count in (1, 2):
            message = refused("demo", *NO_NODES, f"--port={port}", f"--set=router.processes={count}")
            assert port in message
            assert "in use" in message


@pytest.mark.parametrize("setting", ["router.port", "router.registry_port", "router.metrics_port"])
def test_a_taken_port_is_named(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("demo", *NO_NODES, f"--set={setting}={port}")
    assert message.startswith("error: ")
    assert str(port) in message
    assert "in use" in message


@pytest.mark.parametrize("content", [None, b"", b"hello", b"GGUF\x03\x00\x00\x00"])
def test_a_model_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refused(str(path), "--log-level=warning")


def test_a_node_that_cannot_start_ends_the_deployment(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps(config | {"architectures": ["Nonsense"], "model_type": "nonsense"})
    )
    begun = time.monotonic()
    message = refused(str(broken), "--log-level=warning")
    assert "nonsense" in message.lower()
    assert time.monotonic() - begun < START_S


def test_what_is_not_supported_is_refused() -> None:
    message = refused("demo", "--prefill=1", "--set=prefill.devices=cuda:0", "--log-level=warning")
    assert message == "error: prefill.devices: 'cuda:0' is not supported yet, only cpu"
    message = refused("demo", "--decode=1", "--set=decode.tensor_parallel=2", "--log-level=warning")
    wanted = "error: decode.tensor_parallel: 2 is not supported yet, only 1: a node runs on one device"
    assert message == wanted


def test_ctrl_c_while_starting_leaves_nothing() -> None:
    launcher = subprocess.Popen([BATON, "serve", "--log-level=warning"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + START_S
    while not children_of(launcher.pid):
        assert time.monotonic() < end
    os.kill(launcher.pid, signal.SIGINT)
    _, err = launcher.communicate(timeout=START_S)
    assert "Traceback" not in err
    assert children_of(launcher.pid) == []
