"""A deployment on the test's own event loop: router and nodes as in production, but no process of their own.

    async with inprocess(config(model, prefill=1, decode=2)) as cluster:
        answer = await cluster.client.generate(prompt, max_tokens=8, temperature=0.0)
        await cluster.settled()

Real sockets, real shared memory, one engine thread per node. It starts in a fraction of a second, and a test
can look into a node, or fill its pool with rubbish.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import torch

from baton.cli.router import settings as router_settings
from baton.core.load import Role
from baton.engine.weights.locate import locate
from baton.engine.weights.vocabulary import tokenizer_digest
from baton.node.app import NodeApp
from baton.node.core import NodeCore
from baton.router.app import RouterApp
from baton.router.text.load import load_tokenizer
from baton.runtime.child import Ready, RouterStart
from baton.runtime.client.aio import AsyncClient
from baton.runtime.config import ClusterConfig
from baton.runtime.launcher import node_start
from tests.e2e.cluster import IDLE_WITHIN_S, Deployment, eventually


@dataclass
class Node:
    """One node and what tests want of its inside."""

    app: NodeApp
    ready: Ready

    @property
    def core(self) -> NodeCore:
        return self.app._parts.core

    @property
    def pool(self) -> torch.Tensor:
        """[blocks, layers, 2, block size, KV heads, head dim]"""
        return self.app._parts.runner.pool.tensor

    @property
    def steps(self) -> int:
        """Engine steps so far."""
        return self.core._steps

    def checked(self) -> bool:
        """Its books balance. Looked at between turns: False while the engine's thread is at work on them."""
        engine = self.app._engine
        with engine._wake:
            resting = engine.turn_started_s is None
            if resting:
                self.core.check()
        return resting

    def metric(self, name: str) -> float:
        """A counter's value, e.g. `vllm:prefix_cache_hits_total`."""
        metrics = self.app._metrics
        value = metrics.registry.get_sample_value(name, {"model_name": metrics._model})
        assert value is not None, f"no metric {name}"
        return value


@dataclass
class InProcess(Deployment):
    router: RouterApp
    client: AsyncClient
    nodes: dict[str, Node] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return self.router.address

    async def add(self, settings: ClusterConfig, role: Role, index: int = 0) -> Node:
        """One more node, perhaps of another configuration than the rest; ready, but not yet seen as up."""
        start = node_start(settings.resolved(), role, index, (self.router.registry_address,))
        app = NodeApp(start)
        try:
            node = Node(app, await app.start())
        except BaseException:
            await app.stop()
            raise
        self.nodes[start.node_id] = node
        return node

    async def remove(self, name: str) -> None:
        await self.nodes.pop(name).app.stop()

    async def stop(self) -> None:
        for name in list(self.nodes):
            await self.remove(name)

    async def settled(self, within_s: float = IDLE_WITHIN_S) -> None:
        """Nothing is left of any request, and every node's books balance."""
        await self.idle(within_s)

        async def at_work() -> str:
            return ", ".join(name for name, node in self.nodes.items() if not node.checked())

        await eventually(at_work, within_s)
        self.router.machine.check()


@asynccontextmanager
async def inprocess(settings: ClusterConfig) -> AsyncIterator[InProcess]:
    """A deployment whose router sees all its nodes. Metrics are kept, but not served."""
    settings = settings.resolved()
    path = locate(settings.model)
    start = RouterStart(index=0, config=settings, port=0)
    app = RouterApp(router_settings(start, tokenizer_digest(path)), load_tokenizer(str(path)))
    async with AsyncExitStack() as stack:
        await app.start()
        stack.push_async_callback(app.stop)
        client = await stack.enter_async_context(AsyncClient(app.address))
        cluster = InProcess(app, client)
        stack.push_async_callback(cluster.stop)
        for role in Role:
            for index in range(settings.nodes(role).size):
                await cluster.add(settings, role, index)
        await cluster.up(*cluster.nodes)
        yield cluster
