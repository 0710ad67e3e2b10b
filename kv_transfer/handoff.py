"""What the two ends of a hand-off say to each other and want done. Values, carried out in the order given.

The way of one transfer (`handoff_source` and `handoff_sink` are its two state machines):

    prefill node                                   decode node
    start ─────────────── Reserve ───────────────▶ WAITING ── room ──▶ GRANTED
    SENDING ◀───────────── Ticket ──────────────────────────────────────┘
      │ writes, as KV gets ready (by a KvTransport)
    COMMITTING ─────────── Commit ───────────────▶ the blocks go to the decode scheduler
    hand-off done ◀─────── Committed ──────────────┘

Whatever ends it early leaves the source draining (its blocks stay until no write reads them) and the sink's
fresh blocks quarantined until the source promised, was fenced, or is dead.

A loan is the same in the other direction: what a node asked another for, of KV that is cached there. It is
complete from the start, and its commit makes it an ordinary part of the sink's prefix cache.
"""

from __future__ import annotations

from baton.core.errors import BatonError
from baton.core.node_effects import Key
from baton.core.request import Request
from baton.core.value import value
from baton.kv_transfer.writes import Write


@value
class Ticket:
    """Decode's permission to write.

    cached_tokens: tokens at the front that decode has already, a multiple of its block size. blocks: decode's
    block ids for the positions from there on, in order.
    """

    link: str
    transfer_id: int
    cached_tokens: int
    blocks: tuple[int, ...]


@value
class Loan:
    """The beginning of a prompt, for whoever asked for it. key: of its request. tokens: whole blocks of both.
    last_key: the prefix key of the last one, which stands for all that is before it (see core.prefix)."""

    key: Key
    tokens: int
    last_key: bytes


@value
class PeerPool:
    """What the source must know of the sink's pool to check a ticket and to aim writes."""

    block_size: int
    num_blocks: int


# ---- effects of the source -------------------------------------------------------------------------------


@value
class SendReserve:
    """Ask for room. router_id: whom decode tells of the request's tokens."""

    link: str
    transfer_id: int
    router_id: str
    request: Request


@value
class SendOffer:
    """Ask for room for what the peer itself has asked for."""

    link: str
    transfer_id: int
    loan: Loan


@value
class SubmitWrite:
    """To the link's transport connection. Exactly one completion must come back, whatever happens."""

    link: str
    write: Write


@value
class CancelWrites:
    """Stop the transfer's queued and running writes (`Connection.cancel`); their completions still come."""

    link: str
    transfer_id: int


@value
class SendCommit:
    """All of [0, tokens) is applied at the destination. output_ids: all output tokens so far."""

    link: str
    transfer_id: int
    tokens: int
    output_ids: tuple[int, ...]


@value
class SendAbandon:
    """The source's promise, unasked: no write of this transfer is under way or will come."""

    link: str
    transfer_id: int


@value
class SendRevoked:
    """The same promise, in answer to a revoke."""

    link: str
    transfer_id: int


@value
class Release:
    """No write reads the request's blocks any more, nor will: to PrefillScheduler.release. A transfer's last
    effect; exactly one per start."""

    key: Key


@value
class HandedOff:
    """Decode has the request. transfer_s: from the prompt's end to decode's word. payload_bytes: sent."""

    key: Key
    transfer_s: float
    payload_bytes: int


@value
class TransferFailed:
    """This attempt cannot reach its decode node: to PrefillScheduler.fail. Release follows, now or later."""

    key: Key
    error: BatonError


SourceEffect = (
    SendReserve
    | SendOffer
    | SubmitWrite
    | CancelWrites
    | SendCommit
    | SendAbandon
    | SendRevoked
    | Release
    | HandedOff
    | TransferFailed
)
