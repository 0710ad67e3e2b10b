"""What a node's schedulers and its hand-off sink want done or known. Values, carried out in the order given.

Keys are (request id, attempt).
"""

from __future__ import annotations

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError
from baton.core.request import FinishReason, Request
from baton.core.value import value

Key = tuple[str, int]


@value
class Started:
    """The prompt's computation began. cached_tokens: prompt tokens found in the prefix cache; fetched_tokens:
    of these, what another node lent for it."""

    key: Key
    cached_tokens: int
    queued_s: float
    fetched_tokens: int = 0


@value
class TokensOut:
    """New output tokens; index: output position of the first. To the router, at once."""

    key: Key
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@value
class KvReady:
    """Prefill: KV of positions [0, tokens) is in `blocks` (by position) and will not change."""

    key: Key
    tokens: int
    blocks: tuple[int, ...]


@value
class Prefilled:
    """Prefill: the prompt is done, its first token is out and did not end the request. The blocks stay until
    `PrefillScheduler.release(key)` (or `take(key)`, when decode goes on in place). output_ids: all output
    tokens so far, earlier attempts' included."""

    key: Key
    tokens: int
    blocks: tuple[int, ...]
    output_ids: tuple[int, ...]
    prefill_s: float


@value
class Ended:
    """The request is over on this node. It holds nothing here any more, but for prefill blocks that a
    hand-off may still read (they go with `PrefillScheduler.release`). error: only with reason ERROR.
    Nothing is told to the router when `silent` (it asked for the end itself, or hears of it from the other
    node)."""

    key: Key
    reason: FinishReason
    output_tokens: int
    preemptions: int = 0
    error: BatonError | None = None
    silent: bool = False


NodeEffect = Started | TokensOut | KvReady | Prefilled | Ended


# ---- hand-off sink (decode side); link: which prefill node's stream, transfer: its id there ---------------


@value
class SendTicket:
    """After the dirty blocks were cleared and the transport opened for (transfer, blocks)."""

    link: str
    transfer_id: int
    cached_tokens: int
    blocks: tuple[int, ...]


@value
class SendRefusal:
    link: str
    transfer_id: int
    error: BatonError


@value
class SendCommitted:
    link: str
    transfer_id: int


@value
class SendRevoke:
    """Ask the writer to stop and to answer `revoked`."""

    link: str
    transfer_id: int


@value
class Fence:
    """Call transport.fence; when it returns True tell the sink `fenced`."""

    link: str
    transfer_id: int


@value
class Admit:
    """Committed: to DecodeScheduler.admit. computed: positions [0, computed) are in `blocks`. The request's
    output_ids hold the tokens sampled so far. router_id: as given with the reservation. keys: of the full
    blocks, in the prefix index; none: not known yet."""

    request: Request
    blocks: tuple[int, ...]
    computed: int
    cached_tokens: int
    deadline_s: float | None
    router_id: str = ""
    keys: tuple[bytes, ...] = ()


@value
class DropLink:
    """The link showed no life for a lease: close its stream. Its transfers were ended as for a lost link."""

    link: str


@value
class FetchOver:
    """What another node was to lend for this prompt has come (tokens: how many, now in the prefix cache), or
    will not (0). To PrefillScheduler.fetch_over."""

    key: Key
    tokens: int


SinkEffect = (
    SendTicket | SendRefusal | SendCommitted | SendRevoke | Fence | Admit | DropLink | FetchOver | Ended
)
