"""`baton profile`: a file that the simulator reads, or why there is none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from baton.sim.profiles import profile
from tests.cli.test_generate import shell
from tests.fakes import StubConfig, StubNode, router_with

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
