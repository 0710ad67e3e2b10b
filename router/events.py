"""What happens to the router's machine, and what it wants done. Values only; times are arguments.

Every effect is to be carried out in the order given. Node-bound ones (Dispatch, CancelOn, ...) may fail: the
failure comes back as an event.
"""

from __future__ import annotations

from dataclasses import field

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError
from baton.core.load import LoadReport, Role
from baton.core.model import Fingerprint
from baton.core.request import FinishReason, Request
from baton.core.value import value


@value
class NodeInfo:
    """A node as it registered. A restarted node is another incarnation. step_tokens: the most of prompts that
    one step computes; 0: it did not say."""

    node_id: str
    incarnation: str
    address: str
    host_id: str
    fingerprint: Fingerprint
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    max_model_len: int
    load: LoadReport
    kv_dtype: str = ""
    step_tokens: int = 0


# ---- events ----------------------------------------------------------------------------------------------


@value
class Arrived:
    """A validated request. deadline_s: on the machine's clock; None: none."""

    request: Request
    deadline_s: float | None = None


@value
class Cancelled:
    """The client went away, or a stop string was found (`reason` STOP): the request is over for the edge."""

    request_id: str
    reason: FinishReason = FinishReason.CANCELLED


@value
class NodeJoined:
    info: NodeInfo


@value
class NodeReported:
    node_id: str
    incarnation: str
    load: LoadReport


@value
class NodeLost:
    """Its attach stream or lease broke. Whatever it ran must run elsewhere."""

    node_id: str
    incarnation: str
    reason: str


@value
class KvChanged:
    """Keys that a node's prefix cache gained and lost; `reset`: forget what was known before."""

    node_id: str
    incarnation: str
    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    reset: bool = False


@value
class PrefillStarted:
    request_id: str
    attempt: int
    node_id: str
    cached_tokens: int
    queued_s: float
    fetched_tokens: int = 0


@value
class TokensMade:
    """Tokens of one attempt; index: output position of the first, over all attempts."""

    request_id: str
    attempt: int
    node_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@value
class HandedOff:
    """The prefill node is done with the request: decode has its KV."""

    request_id: str
    attempt: int
    node_id: str
    prefill_s: float
    transfer_s: float
    transfer_bytes: int


@value
class NodeFinished:
    request_id: str
    attempt: int
    node_id: str
    reason: FinishReason
    output_tokens: int
    preemptions: int = 0


@value
class NodeFailed:
    """A node gave an attempt up (or refused the dispatch). Which codes to retry is the machine's rule."""

    request_id: str
    attempt: int
    node_id: str
    error: BatonError


@value
class OperatorDrain:
    node_id: str
    draining: bool


@value
class OperatorRole:
    node_id: str
    role: Role


@value
class Tick:
    """Nothing happened but time: sent at `next_wakeup()`."""


Event = (
    Arrived
    | Cancelled
    | NodeJoined
    | NodeReported
    | NodeLost
    | KvChanged
    | PrefillStarted
    | TokensMade
    | HandedOff
    | NodeFinished
    | NodeFailed
    | OperatorDrain
    | OperatorRole
    | Tick
)


# ---- effects ---------------------------------------------------------------------------------------------


@value
class Prediction:
    """Seconds expected for each leg at dispatch; compared with what was measured."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    decode_wait_s: float = 0.0
    tpot_s: float = 0.0
    cached_tokens: int = 0
    fetch_s: float = 0.0  # of waiting for another node's KV, between the two

    @property
    def ttft_s(self) -> float:
        """From the dispatch to the first token."""
        return self.queue_s + self.fetch_s + self.prefill_s

    def mean_tpot_s(self, tokens: float) -> float:
        """Over an answer of so many tokens: the second one waits for the transfer, and for its place."""
        return self.tpot_s + (self.transfer_s + self.decode_wait_s) / max(1.0, tokens - 1)


@value
class Fetch:
    """KV of a prompt's first `tokens` tokens, to be had from `node_id`. patience_s: how long the prompt waits
    for it at most, once it could have begun."""

    node_id: str
    tokens: int
    patience_s: float


@value
class Dispatch:
    """Send the request to `prefill_node`, its KV to go to `decode_node` (may be the same)."""

    request: Request
    prefill_node: str
    decode_node: str
    prediction: Prediction = field(default_factory=Prediction)
    fetch: Fetch | None = None


@value
class CancelOn:
    """Tell a node to end an attempt. Nothing is awaited."""

    node_id: str
    request_id: str
    attempt: int


@value
class Deliver:
    """New tokens for the client: in order, each index exactly once, whatever the nodes repeated or lost."""

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@value
class Outcome:
    """Facts of a finished request for usage and timings; times are the machine's, None: never happened."""

    arrived_s: float
    dispatched_s: float | None = None  # the attempt that gave the first token
    first_token_s: float | None = None
    decode_start_s: float | None = None  # decode's first own token, or the hand-off's end
    last_token_s: float | None = None
    ended_s: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0
    prefill_node: str = ""
    decode_node: str = ""
    prefill_node_s: float = 0.0
    transfer_node_s: float = 0.0
    transfer_bytes: int = 0
    retries: int = 0
    preemptions: int = 0


@value
class Complete:
    """The request ended well (or was cancelled). A request's last effect; exactly one of Complete, Reject."""

    request_id: str
    reason: FinishReason
    outcome: Outcome


@value
class Reject:
    """The request ended with an error: shed, deadline, no node, or out of retries."""

    request_id: str
    error: BatonError
    outcome: Outcome


@value
class SetRole:
    node_id: str
    role: Role


@value
class SetDrain:
    node_id: str
    draining: bool


@value
class Pair:
    """Two nodes that cannot work together, and why: told to both."""

    node_id: str
    other_id: str
    items: tuple[str, ...]


@value
class Record:
    """A line for the decision log and metrics: what was decided, with its reasons in seconds."""

    kind: str
    data: dict[str, object]


Effect = Dispatch | CancelOn | Deliver | Complete | Reject | SetRole | SetDrain | Pair | Record
