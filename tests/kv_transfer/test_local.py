"""What backends with a copying thread share: a write under way stops between two pieces."""

from __future__ import annotations

import threading

import pytest

from baton.kv_transfer import local
from baton.kv_transfer.api import Connection, KvTransport, Outcome
from tests.kv_transfer.rig import LARGE, rig_of, write_of


def _cancel(transport: KvTransport, connection: Connection) -> None:
    connection.cancel(1)


def _close(transport: KvTransport, connection: Connection) -> None:
    connection.close()


def _close_transport(transport: KvTransport, connection: Connection) -> None:
    threading.Thread(target=transport.close).start()  # it waits for the thread


@pytest.mark.parametrize("kind", ["inproc", "shm"])
@pytest.mark.parametrize(
    ("stop", "outcome"),
    [(_cancel, Outcome.CANCELLED), (_close, Outcome.FAILED), (_close_transport, Outcome.FAILED)],
)
def test_a_write_under_way_is_stopped(
    kind: str, stop: object, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, go_on = threading.Event(), threading.Event()
    real = local.copy  # type: ignore[attr-defined]

    def slow(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        copied.set()
        assert go_on.wait(10)

    monkeypatch.setattr(local, "copy", slow)
    with rig_of(kind) as rig:
        source, target = rig.node("s", LARGE, fill=1.0), rig.node("t", LARGE, fill=0.0)
        connection = source.transport.connect(target.peer())
        target.transport.open(1, "s", range(1, 49))
        connection.submit(write_of(1, 1, range(1, 49), range(1, 49), block_size=16))
        connection.submit(write_of(2, 1, [1], [1], block_size=16))
        assert copied.wait(10)
        stop(source.transport, connection)  # type: ignore[operator]
        assert source.wait(1)[2].outcome is outcome  # queued: at once, while the other is under way
        go_on.set()
        ended = source.wait(2)[1]
        assert ended.outcome is outcome
        assert ended.payload_bytes <= local.PIECE_BYTES
        assert int((target.tensor == 1).sum()) * 4 == ended.payload_bytes


def test_a_target_that_dies_during_the_last_piece_has_not_got_the_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rig_of("shm") as rig:
        source, target = rig.node("s", fill=1.0), rig.node("t", fill=0.0)
        assert target.shared is not None
        connection = source.transport.connect(target.peer())
        monkeypatch.setattr(local, "copy", lambda *_: target.close())
        connection.submit(write_of(1, 1, [1], [1]))
        assert source.wait(1)[1].outcome is Outcome.FAILED
