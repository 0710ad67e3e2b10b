"""Several shared-nothing router processes on one client port."""

import asyncio
from collections import Counter
from pathlib import Path

import httpx2
import pytest

from baton.runtime.client.aio import AsyncClient
from tests.e2e.cluster import START_S, Cluster, config, eventually, running
from tests.models import write_model

PROMPT = list(range(5, 30))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("t") / "t", "T", seed=0)


async def ask(cluster: Cluster) -> tuple[int, ...]:
    """Over a connection of its own: the kernel picks the router."""
    async with AsyncClient(cluster.endpoint) as client:
        answer = await client.generate(PROMPT, max_tokens=8, temperature=0.0, timeout_s=20)
        return answer.token_ids


async def ask_http(url: str) -> str:
    """Likewise; the name of the router that answered."""
    async with httpx2.AsyncClient(timeout=20) as client:
        response = await client.post(url, json={"prompt": PROMPT, "max_tokens": 1})
        assert response.status_code == 200, response.text  # of a new router too: it waits for its nodes
        return str(response.json()["id"].rsplit("-", 2)[0])


async def test_two_routers_share_the_port_the_nodes_and_survive_each_other(model: Path) -> None:
    async with running(config(model, router={"processes": 2})) as cluster:
        answers = await asyncio.gather(*(ask(cluster) for _ in range(12)))
        assert len(set(answers)) == 1
        seen = Counter([(await cluster.state()).router_id for _ in range(24)])
        assert len(seen) == 2, f"one router got every connection: {seen}"
        url = f"http://{cluster.launcher.http_endpoint}/v1/completions"
        assert len({await ask_http(url) for _ in range(24)}) == 2
        await cluster.idle()

        cluster.kill("router-0")
        alive = cluster.member("router-1").child
        assert alive is not None

        async def restarted() -> str:
            return "" if cluster.member("router-0").restarts and cluster.member("router-0").ready else "down"

        await eventually(restarted, START_S)
        assert await ask(cluster) == answers[0]

        async def one_only() -> str:
            names = {await ask_http(url) for _ in range(12)}
            return "" if len(names) == 2 else "not both answer HTTP"

        await eventually(one_only, START_S)
        assert alive.exit_code is None
