"""The event-loop half of a node, told directly what the engine thread would emit."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from baton.core.errors import Unavailable
from baton.core.kvcache import KvEvents
from baton.core.node_effects import KvReady, TokensOut
from baton.core.request import Request, SamplingParams
from baton.node import commands as cmd
from baton.node import shell as shell_module
from baton.node.core import KvChange, SnapshotOut
from baton.node.observe import NodeObserver
from baton.node.service import NodeService
from baton.node.shell import Shell
from baton.prefill_node.link import Target
from baton.proto.v1 import node_pb2 as pb
from baton.runtime.metrics import NodeMetrics

REQUEST = Request("r", (1, 2, 3), SamplingParams(), max_tokens=4)


class Engine:
    def __init__(self) -> None:
        self.posted: list[cmd.Command] = []
        self.block_size = 4

    def post(self, command: cmd.Command) -> None:
        self.posted.append(command)


def shell_on(engine: Engine) -> Shell:
    shell = Shell("node", "i1", 8, NodeObserver(NodeMetrics("model", "node")))
    unused: Any = None
    wired: Any = engine
    shell.wire(wired, unused, unused, unused)
    return shell


async def no_drain(draining: bool) -> None: ...


async def test_a_snapshots_number_is_that_of_its_keys() -> None:
    """Regression: events of the same turn, published before the caller ran, were counted as included."""
    engine = Engine()
    shell = shell_on(engine)
    published: list[KvEvents] = []
    shell.on_kv, shell.bus_seq = published.append, lambda: len(published)
    service: Any = NodeService(shell, lambda: None, no_drain)  # type: ignore[arg-type,return-value]
    asking = asyncio.create_task(service.KvSnapshot(pb.KvSnapshotRequest(), None))
    await asyncio.sleep(0)
    (asked,) = engine.posted
    assert isinstance(asked, cmd.Snapshot)
    shell.emit(
        [
            KvChange(KvEvents(stored=[b"a", b"b"])),
            SnapshotOut(asked.token, (b"a", b"b")),
            KvChange(KvEvents(removed=[b"a"])),
        ]
    )
    answer = await asking
    assert list(answer.keys) == [b"a", b"b"]
    assert answer.bus_seq == 1
    assert len(published) == 2


async def test_a_request_without_a_stream_for_its_tokens_can_be_tried_elsewhere() -> None:
    """Regression: it was FailedPrecondition, which routers take for a pair of nodes that never fits."""
    shell, target = shell_on(Engine()), Target("node", "i1", "")
    with pytest.raises(Unavailable):
        shell.prefill("router", REQUEST, target)
    with pytest.raises(Unavailable):
        shell.reserve("prefill/p1", 7, REQUEST, "router")
    shell.attach("router")
    shell.prefill("router", REQUEST, target)
    with pytest.raises(Unavailable, match="here already"):
        shell.prefill("router", REQUEST, target)


async def test_a_router_that_does_not_read_is_let_go_with_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: its stream hung in a write, so its requests ran on to their ends for nobody."""
    monkeypatch.setattr(shell_module, "OUTBOX_LIMIT", 2)
    engine = Engine()
    shell = shell_on(engine)
    outbox = shell.attach("router")
    messages = outbox.messages()
    shell.prefill("router", REQUEST, Target("node", "i1", ""))
    key = (REQUEST.id, REQUEST.attempt)
    shell.emit([TokensOut(key, 0, (5,))])
    await anext(messages)
    shell.emit([TokensOut(key, index, (5,)) for index in range(1, 4)])
    await asyncio.sleep(0)
    assert cmd.AbortKeys((key,)) in engine.posted
    with pytest.raises(Unavailable):
        shell.prefill("router", replace(REQUEST, attempt=1), Target("node", "i1", ""))
    with pytest.raises(Unavailable):
        await anext(messages)


async def test_an_effect_that_fails_is_a_fault_of_the_node_and_the_others_are_carried_out() -> None:
    """Regression: the rest of the turn's effects were dropped, and the node went on without them."""
    shell = shell_on(Engine())  # without an exporter
    faults: list[BaseException] = []
    published: list[KvEvents] = []
    shell.on_fault, shell.on_kv = faults.append, published.append
    shell.emit([KvReady(("r", 0), 4, (1,)), KvChange(KvEvents(stored=[b"a"]))])
    await asyncio.sleep(0)
    assert [type(fault) for fault in faults] == [AttributeError]
    assert published == [KvEvents(stored=[b"a"])]


async def test_an_abort_that_overtakes_its_request_still_ends_it() -> None:
    engine = Engine()
    shell, target = shell_on(engine), Target("node", "i1", "")
    shell.attach("router")
    with shell.arriving(("r", 0)):
        shell.abort([("r", 0)])
        with pytest.raises(Unavailable, match="cancelled"):
            shell.prefill("router", REQUEST, target)
    assert not any(isinstance(command, cmd.Add) for command in engine.posted)
    with shell.arriving(("r", 0)):  # the same key may come again
        shell.prefill("router", REQUEST, target)
