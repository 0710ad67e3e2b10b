"""What the event loop asks of the engine thread. Values in a mailbox; nothing is answered but by effects."""

from __future__ import annotations

from baton.core.errors import BatonError
from baton.core.load import Role
from baton.core.node_effects import Key
from baton.core.request import Request
from baton.core.value import value
from baton.kv_transfer.handoff import Loan


@value
class Fetch:
    """KV of a new request's first tokens that another node is being asked for. lender: its link's name.
    patience_s: how long the request may wait for that once it could have begun."""

    lender: str
    tokens: int
    patience_s: float


@value
class Add:
    """A new request. in_place: decode goes on here, no hand-off. deadline_s: on this node's clock."""

    request: Request
    deadline_s: float | None
    in_place: bool
    fetch: Fetch | None = None


@value
class FetchFailed:
    """The other node will lend nothing for this request."""

    key: Key


@value
class Lend:
    """Another node wants what is cached here of a prefix, named by its keys; comes back as `core.Lent`. Held
    until ExportEnded."""

    key: Key
    keys: tuple[bytes, ...]


@value
class AbortKeys:
    """End these requests wherever they are. The router asked: it is not told."""

    keys: tuple[Key, ...]


@value
class Fail:
    """The hand-off of this request cannot succeed: the attempt is over, the router is told why."""

    key: Key
    error: BatonError


@value
class ExportEnded:
    """The hand-off of this request, or the loan, is over (done or given up) and no write reads its blocks any
    more."""

    key: Key


@value
class Reserve:
    link: str
    transfer_id: int
    request: Request
    router_id: str


@value
class Offer:
    """KV that this node asked for."""

    link: str
    transfer_id: int
    loan: Loan


@value
class Commit:
    link: str
    transfer_id: int
    tokens: int
    output_ids: tuple[int, ...]


@value
class Abandon:
    """The writer promises to write no more of this transfer: by itself, or (revoked) because we asked."""

    link: str
    transfer_id: int
    revoked: bool


@value
class Fenced:
    link: str
    transfer_id: int


@value
class LinkReturned:
    """A writer that had a link before said Hello again: all its earlier writes are over."""

    link: str


@value
class LinkBeat:
    link: str


@value
class LinkLost:
    link: str


@value
class WriterDead:
    """The process behind a link is gone: it can write no more."""

    link: str


@value
class SetRole:
    role: Role


@value
class SetDraining:
    draining: bool


@value
class Snapshot:
    """Ask for the keys of all findable blocks; comes back as `core.SnapshotOut` with the same token."""

    token: int


SinkCommand = Reserve | Offer | Commit | Abandon | Fenced | LinkReturned | LinkBeat | LinkLost | WriterDead

Command = (
    Add | AbortKeys | Fail | ExportEnded | FetchFailed | Lend | SetRole | SetDraining | Snapshot | SinkCommand
)
