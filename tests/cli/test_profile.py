"""`baton profile`: a file that the simulator reads, or why there is none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from baton.cli.profile import profile as make_profile
from baton.core.load import Role
from baton.sim.profiles import profile
from tests.cli.test_generate import shell
from tests.fakes import StubConfig, StubNode, eventually, router_with

ENGINE = {"max_batch_tokens": 256, "chunk_tokens": 128, "max_running": 4, "max_waiting": 9, "threads": 1}


async def test_a_deployment_s_profile_is_written(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    node = StubNode(config=StubConfig(step_s=0.002, max_model_len=300))
    async with router_with(node, config_json=json.dumps({"engine": ENGINE})) as cluster:
        line = f"$BATON profile --rounds 1 --name here -o {path}"
        code, out, err = await asyncio.to_thread(shell, line, cluster.app.address)
        await cluster.all_idle()
    assert (code, err) == (0, "")
    assert "here: " in out
    found = profile(str(path))
    assert (found.name, found.chunk_tokens, found.max_running, found.max_model_len) == ("here", 128, 4, 300)


async def test_a_router_without_nodes_or_settings_is_told(tmp_path: Path) -> None:
    line = f"$BATON profile -o {tmp_path}/p.yaml"
    async with router_with() as cluster:
        code, _, err = await asyncio.to_thread(shell, line, cluster.app.address)
        assert (code, err) == (1, f"error: {cluster.app.address} has no node\n")
    async with router_with(StubNode()) as cluster:
        code, _, err = await asyncio.to_thread(shell, line, cluster.app.address)
        assert code == 1
        assert "does not tell its settings" in err
    assert not (tmp_path / "p.yaml").exists()


async def test_nodes_of_this_host_are_measured_beside_each_other_and_all_take_requests_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.yaml"
    stubs = [
        StubNode(name, StubConfig(role=role, step_s=0.003, prefill_s=0.02, max_model_len=1200))
        for name, role in (("p0", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE))
    ]
    monkeypatch.setattr("baton.kv_transfer.select.host_id", lambda: "host")
    async with router_with(*stubs, config_json=json.dumps({"engine": ENGINE})) as cluster:
        await asyncio.to_thread(make_profile, cluster.app.address, path, 1, "here")
        await cluster.all_idle()
        machine, now = cluster.app.machine, cluster.app.driver.now
        await eventually(lambda: [node.state for node in machine.nodes(now())] == ["up"] * 3)
    beside = profile(str(path)).beside
    assert beside is not None
    assert beside.threads == 1
    assert [rows for rows, _ in beside.decode_prompt] == [1, 2]
    assert all(factor >= 1.0 for _, factor in beside.decode_decode)
