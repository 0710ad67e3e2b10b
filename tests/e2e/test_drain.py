"""A node that leaves on purpose finishes what it has."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.e2e.cluster import START_S, config, eventually, running
from tests.models import write_model

PROMPT = list(range(5, 30))
TOKENS = 60
STEP_S = 0.02  # so that it is asked to leave in the middle


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("t") / "t", "T", seed=0)


async def test_sigterm_to_a_decode_node_lets_its_requests_finish(model: Path) -> None:
    settings = config(model, supervise={"restart": True, "backoff_s": 0.1})
    async with running(settings) as cluster:
        first = cluster.member("decode-0").child
        assert first is not None
        stream = cluster.client.stream(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        tokens: list[int] = []
        with cluster.slowed(STEP_S):
            async for delta in stream:
                if not tokens:
                    cluster.signal("decode-0", signal.SIGTERM)
                tokens += delta.token_ids
                last = delta
        assert len(tokens) == TOKENS
        assert last.timings is not None
        assert last.timings.retries == 0, "the node did not wait for its request"
        assert await asyncio.wait_for(first.wait(), 30) == 0

        async def back() -> str:
            return "" if cluster.member("decode-0").restarts == 1 else "not restarted"

        await eventually(back, START_S)
        await cluster.up("decode-0")
        again = await cluster.client.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        assert list(again.token_ids) == tokens
        await cluster.idle()
