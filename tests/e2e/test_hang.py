"""An engine that hangs in a step: the node ends by itself, and its requests continue elsewhere."""

import asyncio
import threading
from pathlib import Path

import pytest

from baton.core.batch import Batch, StepOutput
from tests.e2e.cluster import config
from tests.e2e.exact import QUIET
from tests.e2e.faults import PATIENCE_S
from tests.e2e.inprocess import inprocess
from tests.models import write_model

PROMPT = list(range(5, 30))
TOKENS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("t") / "t", "T", seed=0)


async def test_a_step_that_never_ends_ends_the_node(model: Path) -> None:
    async with inprocess(config(model, decode=2, engine={"stall_s": 100.0}, **QUIET)) as cluster:
        want = (await cluster.client.generate(PROMPT, max_tokens=TOKENS, temperature=0.0)).token_ids
        release = threading.Event()
        hung = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in ("decode-0", "decode-1"):
            runner = cluster.nodes[name].app._engine._runner
            run = runner.run

            def stuck(batch: Batch, name: str = name, run=run) -> StepOutput:  # type: ignore[no-untyped-def]
                if batch.rows and batch.rows[0].start > len(PROMPT) + 5 and not stuck_at:
                    stuck_at.append(name)
                    loop.call_soon_threadsafe(hung.set)
                    release.wait(100)
                return run(batch)

            runner.run = stuck  # type: ignore[method-assign]
        stuck_at: list[str] = []
        asking = asyncio.create_task(cluster.client.generate(PROMPT, max_tokens=TOKENS, temperature=0.0))
        await asyncio.wait_for(hung.wait(), PATIENCE_S)
        (name,) = stuck_at
        app = cluster.nodes[name].app
        settings = app._parts.settings
        assert settings.stall_s == 100.0
        app._parts.settings = settings.model_copy(
            update={"stall_s": 1.0}
        )  # not before: no other step is at fault
        await asyncio.wait_for(app._stopping.wait(), PATIENCE_S)
        assert isinstance(app.fault, TimeoutError)
        assert "in one step for more than 1 s" in str(app.fault)
        leaving = asyncio.create_task(cluster.remove(name))
        answer = await asyncio.wait_for(asking, PATIENCE_S)
        assert answer.token_ids == want
        assert answer.timings.retries == 1
        release.set()
        await leaving
