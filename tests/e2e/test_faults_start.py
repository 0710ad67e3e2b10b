"""Starts that cannot succeed: one plain line that says why, an exit code, and nothing left running."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file

from baton.runtime.child import PARENT_ENV
from tests.e2e.cluster import config, launched, running
from tests.e2e.exact import solid_case, tiny
from tests.e2e.faults import PATIENCE_S, trouble, until
from tests.models import write_model

SERVE = (str(Path(sys.executable).with_name("baton")), "serve", "--log-level=warning")
REFUSED_WITHIN_S = 90.0
"""The aim is 5 s from the start of loading; this much is for a machine on which everything takes long."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("start") / "m")


def refused(*args: str, before: Sequence[str] = ()) -> str:
    """The last line of a start that must fail."""
    launcher = subprocess.Popen(
        [*before, *SERVE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = launcher.communicate(timeout=REFUSED_WITHIN_S)
    assert launcher.returncode in (1, 2), (launcher.returncode, err)
    assert out == ""
    assert "Traceback" not in err
    assert "Bus error" not in err
    assert left_of(launcher.pid) == []
    return err.splitlines()[-1]


def left_of(launcher: int) -> list[int]:
    """Processes that this launcher started and that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(PARENT_ENV) == str(launcher)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def damaged(model: Path, folder: Path, how: str) -> Path:
    """A copy of the model with something wrong with it."""
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "header":
        weights.write_bytes(b"\xff" * 8 + weights.read_bytes()[8:])
    elif how == "missing":
        tensors = load_file(weights)
        del tensors["model.layers.2.mlp.up_proj.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})
    elif how == "shape":
        tensors = load_file(weights)
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
        save_file(tensors, weights, metadata={"format": "pt"})
    elif how == "no weights":
        weights.unlink()
    elif how == "config":
        (folder / "config.json").write_text('{"architectures": [')
    else:
        (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("truncated", "model.safetensors"),
        ("header", "model.safetensors"),
        ("missing", "model.layers.2.mlp.up_proj.weight"),
        ("shape", "model.norm.weight"),
        ("no weights", "safetensors"),
        ("config", "config.json"),
        ("tokenizer", "tokenizer"),
    ],
)
def test_a_damaged_model_is_named(model: Path, tmp_path: Path, how: str, named: str) -> None:
    message = refused(str(damaged(model, tmp_path / "m", how)), "--both=1")
    assert message.startswith("error: ")
    assert named in message


def test_a_pool_larger_than_shared_memory(model: Path) -> None:
    """CFG3: said at the start, and no bus error later."""
    size = shutil.disk_usage("/dev/shm").total * 4
    message = refused(str(model), "--both=1", f"--kv-memory={size}", "--max-model-len=64")
    assert "/dev/shm" in message
    assert "fewer blocks" in message


def test_shared_memory_that_is_full(model: Path) -> None:
    """CFG3, with a /dev/shm of 1 MiB: the first node fits, the second does not."""
    small = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mount = "mount -t tmpfs -o size=1M tmpfs /dev/shm"
    if subprocess.run([*small, mount], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    before = (*small, f'{mount} && exec "$@"', "sh")
    message = refused(str(model), "--set=engine.num_blocks=48", before=before)
    assert "/dev/shm" in message
    assert "MiB free of 1.0" in message


def test_a_taken_port_of_a_node(model: Path) -> None:
    """CFG4: by another listener, also one that was not bound by name. (The router's: tests/cli.)"""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((host, 0)) as taken:
            port = taken.getsockname()[1]
            message = refused(str(model), "--both=1", f"--set=both.port={port}", "--set=engine.num_blocks=8")
        assert str(port) in message
        assert "in use" in message


def test_ctrl_c_leaves_nothing(model: Path) -> None:
    """Of a deployment that serves; one that starts: tests/cli."""
    launcher = subprocess.Popen(
        [*SERVE, "--json", str(model), "--set=engine.num_blocks=64"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    processes = json.loads(launcher.stdout.readline())["processes"]
    assert sorted(left_of(launcher.pid)) == sorted(process["pid"] for process in processes)
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=REFUSED_WITHIN_S)
    assert "Traceback" not in err
    assert left_of(launcher.pid) == []


async def test_nodes_with_other_weights(tmp_path: Path) -> None:
    """KV4: two groups of nodes, started apart, whose models differ in nothing but their weights. The second
    is refused, the item named on both sides, and the first goes on."""
    model, reference = tiny(tmp_path)
    other = write_model(tmp_path / "other", seed=7)
    case = solid_case(reference, 9, 6)
    log = tmp_path / "log"
    async with running(config(model, served_name="t"), log) as cluster:
        registry = cluster.launcher.routers[0].ready
        assert registry is not None
        apart = config(
            other, served_name="t", router={"processes": 0}, registries=(registry.registry,), prefill=0
        )
        async with launched(apart, log):

            async def said() -> bool:
                text = log.read_text()
                return "a router refused this node" in text and "node refused" in text

            await until(said, what="refused on both sides")
            assert "weights" in "".join(trouble(log))
            assert {node.registration.node_id for node in (await cluster.state()).nodes} == {
                "prefill-0",
                "decode-0",
            }
            for _ in range(5):
                answer = await cluster.client.generate(case.prompt, max_tokens=6, temperature=0.0)
                assert list(answer.token_ids) == case.want.token_ids
        await cluster.idle(PATIENCE_S)
