"""The live router's event log, replayed, gives the very effects that the live router carried out."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from baton.router.event_log import replay
from baton.router.events import CancelOn, Complete, Deliver, Dispatch
from baton.router.machine import RouterMachine
from tests.e2e.cluster import config
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("t") / "t", "T", seed=0, max_position_embeddings=8192)


async def traffic(cluster: InProcess) -> None:
    """Answers, a cancelled stream, a stop string, and a node that leaves in the middle."""
    ask = cluster.client.generate
    await asyncio.gather(*(ask(list(range(5, 9 + 7 * i)), max_tokens=6, seed=i) for i in range(6)))
    stream = cluster.client.stream(list(range(5, 30)), max_tokens=4000, ignore_eos=True)
    async for _ in stream:
        stream.cancel()
        break
    async for _ in cluster.client.stream(list(range(7, 40)), max_tokens=60, ignore_eos=True, seed=3):
        if "decode-1" in cluster.nodes:
            await cluster.remove("decode-1")
    await ask(list(range(5, 30)), max_tokens=6, temperature=0.0)


def kinds(effects: Iterable[Any]) -> set[type]:
    return {type(effect) for effect in effects}


async def test_a_live_log_replays_to_identical_effects(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    live: list[tuple[float, Any, list[Any]]] = []
    step = RouterMachine.step

    def recorded(self: RouterMachine, now: float, event: Any) -> list[Any]:
        effects = step(self, now, event)
        live.append((now, event, list(effects)))
        return effects

    with monkeypatch.context() as patch:
        patch.setattr(RouterMachine, "step", recorded)
        async with inprocess(
            config(model, decode=2, engine={"num_blocks": 2048}, router={"event_log": str(path)})
        ) as cluster:
            await traffic(cluster)
    seen = kinds(effect for _, _, effects in live for effect in effects)
    assert {Dispatch, Deliver, Complete, CancelOn} <= seen, "too little happened to compare"
    again = list(replay(path))
    assert [(now, event) for now, event, _ in again] == [(now, event) for now, event, _ in live]
    for replayed, carried_out in zip(again, live, strict=True):
        assert replayed == carried_out
