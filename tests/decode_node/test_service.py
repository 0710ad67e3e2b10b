"""The hand-off stream as prefill nodes see it: who ends it, and what the engine learns of that."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from baton.core.errors import FailedPrecondition, InvalidArgument
from baton.core.model import Fingerprint, ModelInfo
from baton.core.node_effects import DropLink, SendRevoke
from baton.decode_node import links
from baton.decode_node.service import DecodeService, Facts
from baton.kv_transfer.handoff import Loan
from baton.kv_transfer.layout import KvLayout
from baton.proto.v1 import decode_node_pb2 as pb
from baton.runtime import codec_node

FINGERPRINT = Fingerprint("1", "fake", "w", "t", "g", "none", "float32", "native")
LAYOUT = KvLayout(4, 0, 2, 0, 1, 8, "float32", 16)
FACTS = Facts("decode", "d1", "host", ModelInfo("fake", 100, 64, (), FINGERPRINT), LAYOUT, 3.0)
LINK = "prefill/p1"


class Port:
    """What the engine was told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, *args, *kwargs.values()))


class Stream:
    """A prefill process's stream, without a wire. `answers` is None after each end of it."""

    def __init__(self, service: DecodeService, pid: int = 0, layout: KvLayout | None = None) -> None:
        self._sent: asyncio.Queue[pb.HandoffRequest] = asyncio.Queue()
        self.say(
            hello=pb.PrefillHello(
                node_id="prefill",
                incarnation="p1",
                fingerprint=codec_node.fingerprint_to_proto(FINGERPRINT),
                layout=codec_node.layout_to_proto(layout or LAYOUT),
                pid=pid,
                host_id="host",
            )
        )
        self._answers = service.Handoff(self._requests(), None)  # type: ignore[arg-type]

    def say(self, **message: Any) -> None:
        self._sent.put_nowait(pb.HandoffRequest(**message))

    async def answer(self) -> pb.HandoffResponse | None:
        """The next message; None: decode ended the stream."""
        return await asyncio.wait_for(anext(self._answers, None), 5)

    async def _requests(self) -> AsyncIterator[pb.HandoffRequest]:
        while True:
            yield await self._sent.get()


@pytest.fixture
def port() -> Port:
    return Port()


@pytest.fixture
def service(port: Port) -> DecodeService:
    return DecodeService(FACTS, port, {}, lambda reason: None)


async def up(service: DecodeService, pid: int = 0) -> Stream:
    stream = Stream(service, pid)
    hello = await stream.answer()
    assert hello is not None
    assert hello.hello.incarnation == "d1"
    return stream


async def test_a_dropped_link_ends_though_its_writer_lives_on(service: DecodeService, port: Port) -> None:
    """Regression: the stream stayed open, read but never answered, so later hand-offs on it timed out."""
    stream = await up(service)
    stream.say(beat=pb.Beat())
    service.carry_out(DropLink(LINK))
    assert await stream.answer() is None
    assert port.calls[-1] == ("link_lost", LINK)
    await up(service)
    assert port.calls[-1] == ("link_up", LINK, True)


async def test_a_newer_stream_of_the_same_process_ends_the_older(service: DecodeService, port: Port) -> None:
    older = await up(service)
    newer = await up(service)
    assert await older.answer() is None
    assert ("link_lost", LINK) not in port.calls
    service.carry_out(SendRevoke(LINK, 7))
    answer = await newer.answer()
    assert answer is not None
    assert answer.revoke.transfer_id == 7


async def test_a_writer_that_does_not_read_loses_its_link(
    service: DecodeService, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "QUEUE_LIMIT", 3)
    stream = await up(service)
    for transfer_id in range(4):
        service.carry_out(SendRevoke(LINK, transfer_id))
    assert await stream.answer() is None
    assert port.calls[-1] == ("link_lost", LINK)


async def test_a_bad_message_is_the_streams_status(service: DecodeService, port: Port) -> None:
    stream = await up(service)
    stream.say(choice=pb.TransportChoice(kind="pigeon"))
    with pytest.raises(InvalidArgument):
        await stream.answer()
    assert port.calls[-1] == ("link_lost", LINK)


@pytest.mark.parametrize(
    ("change", "item"),
    [
        ({"dtype": "float8_e5m2"}, "dtype: 'float8_e5m2' here is not one of"),
        ({"dtype": "int8", "head_dim": 24}, "head_dim: 24 here, 8 there"),
    ],
)
async def test_kv_that_cannot_be_converted_is_refused_by_name(
    service: DecodeService, change: dict[str, Any], item: str
) -> None:
    with pytest.raises(FailedPrecondition, match=item):
        await Stream(service, layout=replace(LAYOUT, **change)).answer()
    assert await Stream(service, layout=replace(LAYOUT, dtype="int8")).answer() is not None


async def test_a_pid_that_can_be_no_process_is_not_watched(service: DecodeService) -> None:
    await up(service, pid=2**32 - 1)
    service.close()


async def offer(service: DecodeService, layout: KvLayout, loan: pb.Loan) -> Stream:
    stream = Stream(service, layout=layout)
    assert await stream.answer() is not None
    link = service._links.get(LINK)
    assert link is not None
    link.transport = "any"
    stream.say(reserve=pb.Reserve(transfer_id=7, loan=loan))
    stream.say(beat=pb.Beat())
    return stream


async def test_a_loan_is_offered_to_the_engine(service: DecodeService, port: Port) -> None:
    await offer(service, LAYOUT, pb.Loan(request_id="r", attempt=1, tokens=8, last_key=b"k" * 16))
    async with asyncio.timeout(5):
        while port.calls[-1] != ("link_beat", LINK):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
    assert port.calls[-2] == ("offer", LINK, 7, Loan(("r", 1), 8, b"k" * 16))


@pytest.mark.parametrize(
    ("dtype", "loan", "code"),
    [
        ("int8", pb.Loan(request_id="r", tokens=8, last_key=b"k" * 16), "FAILED_PRECONDITION"),
        ("float32", pb.Loan(request_id="r", tokens=8, last_key=b"k" * 15), "INVALID_ARGUMENT"),
        ("float32", pb.Loan(request_id="", tokens=8, last_key=b"k" * 16), "INVALID_ARGUMENT"),
    ],
)
async def test_a_loan_that_cannot_be_taken_is_refused(
    dtype: str, loan: pb.Loan, code: str, service: DecodeService, port: Port
) -> None:
    stream = await offer(service, replace(LAYOUT, dtype=dtype), loan)
    answer = await stream.answer()
    assert answer is not None
    assert (answer.refused.transfer.transfer_id, answer.refused.fault.code) == (7, code)
    assert not [call for call in port.calls if call[0] == "offer"]
