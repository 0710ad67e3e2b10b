"""One client request while it lives at the router: its current attempt, and its output in order.

Output position `attempt.base` is owed by the prefill node, later ones by the decode node; the two stream
independently, so tokens may arrive in any order. A node matters as long as it owes something.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.model import Fingerprint
from baton.core.request import FinishReason, Request
from baton.router.events import Deliver, Fetch, NodeFinished, Outcome, Prediction, TokensMade
from baton.router.prefix_view import PromptChains


@dataclass(slots=True, eq=False)
class Attempt:
    """One dispatch. held: tokens that arrived before their predecessors, by index. ending: how the request
    ends, once nothing is to come of it but the prefill node's word of the hand-off."""

    number: int
    base: int
    prefill_id: str
    decode_id: str
    dispatched_s: float
    fingerprint: Fingerprint
    context_limit: int
    prediction: Prediction
    fetch: Fetch | None = None
    on_prefill: bool = True  # whether the node's ledger for that leg holds it
    on_decode: bool = True
    started: bool = False
    prefilling: bool = True  # its first token has not been delivered
    prompt_logprobs: int = 0  # how many of them came, in one part or several
    handed_off: bool = False
    finished: NodeFinished | None = None
    ending: FinishReason | None = None
    held: dict[int, TokensMade] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        if self.prefill_id == self.decode_id:
            return (self.prefill_id,)
        return (self.prefill_id, self.decode_id)


@dataclass(slots=True, eq=False)
class Facts:
    """What an Outcome is made of. First come, first kept: a retry has one TTFT, as the client saw it."""

    arrived_s: float
    dispatched_s: float | None = None
    first_token_s: float | None = None
    decode_start_s: float | None = None
    last_token_s: float | None = None
    cached_tokens: int | None = None
    prefill_node: str = ""
    decode_node: str = ""
    prefill_node_s: float = 0.0
    transfer_node_s: float = 0.0
    transfer_bytes: int = 0
    preemptions: int = 0
    prediction: Prediction | None = None  # of the attempt that gave the first token

    def tpot_s(self, output_tokens: int) -> float | None:
        """Seconds between tokens; None where there are fewer than two."""
        if self.first_token_s is None or self.last_token_s is None or output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (output_tokens - 1)


class Live:
    """Attempt None: waiting at the router."""

    __slots__ = (
        "attempt",
        "avoid",
        "avoid_pairs",
        "chains",
        "deadline_s",
        "facts",
        "fingerprint",
        "number",
        "output",
        "passed_since_s",
        "prompt_logprobs_sent",
        "refusals",
        "request",
        "retries",
        "work_s",
    )

    def __init__(self, request: Request, now: float, deadline_s: float | None) -> None:
        self.request = request
        self.deadline_s = deadline_s
        self.output: list[int] = list(request.output_ids)
        self.attempt: Attempt | None = None
        self.retries = 0
        self.refusals = 0
        self.avoid: dict[str, None] = {}  # nodes that failed it: used again only if there is no other
        self.avoid_pairs: dict[tuple[str, str], None] = {}
        self.fingerprint: Fingerprint | None = None  # whose text this is, once there is text
        self.chains = PromptChains(request.token_ids, request.salt)
        self.prompt_logprobs_sent = 0  # they come in order, and from the first again with each attempt
        self.number = 0  # in the order of queueing
        self.work_s = 0.0  # of its prompt, as predicted when it was queued
        self.passed_since_s: float | None = None
        self.facts = Facts(now)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def due_s(self) -> float | None:
        """When its first token should be out; None: there is no target, or it is."""
        target_s = self.request.slo.ttft_s
        if target_s is None or self.facts.first_token_s is not None:
            return None
        return self.facts.arrived_s + target_s

    def accept(self, event: TokensMade, attempt: Attempt, now: float) -> list[Deliver]:
        """Take tokens of the current attempt in; what can now be delivered, in order."""
        have = len(self.output)
        if event.index > have:
            known = attempt.held.get(event.index)
            longer = known is None or len(known.token_ids) < len(event.token_ids)
            if event.index < self.request.max_tokens and longer:
                attempt.held[event.index] = event
            return []
        ready = self._take(event, attempt, now)
        if not attempt.held:
            return [ready] if ready is not None else []
        out = [ready] if ready is not None else []
        while attempt.held and (first := min(attempt.held)) <= len(self.output):
            more = self._take(attempt.held.pop(first), attempt, now)
            if more is not None:
                out.append(more)
        return out

    def _take(self, event: TokensMade, attempt: Attempt, now: float) -> Deliver | None:
        output = self.output
        index = len(output)
        token_ids, logprobs = event.token_ids, event.logprobs
        skip = index - event.index
        if skip or index + len(token_ids) > self.request.max_tokens:
            end = self.request.max_tokens - event.index
            token_ids, logprobs = token_ids[skip:end], logprobs[skip:end]
        prompt_logprobs = event.prompt_logprobs
        if prompt_logprobs:
            sent, came = self.prompt_logprobs_sent, attempt.prompt_logprobs
            wanted = len(self.request.prompt_ids) - 1 - came
            attempt.prompt_logprobs += len(prompt_logprobs)
            prompt_logprobs = prompt_logprobs[sent - came : wanted] if wanted > 0 else ()
            self.prompt_logprobs_sent += len(prompt_logprobs)
        if not token_ids and not prompt_logprobs:
            return None
        facts = self.facts
        if token_ids:
            output.extend(token_ids)
            facts.last_token_s = now
            if facts.first_token_s is None:
                facts.first_token_s = now
                facts.dispatched_s = attempt.dispatched_s
                facts.prediction = attempt.prediction
                self.fingerprint = attempt.fingerprint
            if facts.decode_start_s is None and event.index > attempt.base:
                facts.decode_start_s = now
        return Deliver(self.request.id, index, token_ids, logprobs, prompt_logprobs)

    @property
    def whole(self) -> bool:
        """Whether the node said that it is done and all it made has been delivered."""
        attempt = self.attempt
        if attempt is None or attempt.finished is None:
            return False
        return len(self.output) >= min(attempt.finished.output_tokens, self.request.max_tokens)

    def owes(self, node_id: str) -> bool:
        """Whether the current attempt still needs that node."""
        attempt = self.attempt
        if attempt is None or node_id not in attempt.nodes or attempt.ending is not None:
            return False
        if attempt.prefill_id == attempt.decode_id:
            return True
        have, finished = len(self.output), attempt.finished
        if node_id == attempt.prefill_id:
            decoding = attempt.handed_off or any(index > attempt.base for index in attempt.held)
            decoding = decoding or have > attempt.base + 1
            ended_by_decode = finished is not None and finished.node_id == attempt.decode_id
            return have <= attempt.base or not (decoding or ended_by_decode)
        if finished is None:
            return True
        if finished.node_id == attempt.prefill_id:
            return False  # it ended with its first token
        return not self._covers(max(have, attempt.base + 1), finished.output_tokens)

    @property
    def lacks_word(self) -> bool:
        """Whether decode has the KV, but the prefill node has not told yet what the hand-off cost."""
        attempt = self.attempt
        if attempt is None or attempt.prefill_id == attempt.decode_id:
            return False
        return attempt.on_prefill and not self.owes(attempt.prefill_id)

    def _covers(self, start: int, end: int) -> bool:
        """Whether held tokens fill output positions [start, end)."""
        assert self.attempt is not None
        for index in sorted(self.attempt.held):
            if index <= start:
                start = max(start, index + len(self.attempt.held[index].token_ids))
        return start >= end

    def natural_end(self, context_limit: int) -> FinishReason | None:
        """How the delivered output ends if it is complete as it stands, though no node lived to say so."""
        request = self.request
        if not self.output:
            return None
        last = self.output[-1]
        if last in request.sampling.stop_token_ids:
            return FinishReason.STOP
        if last in request.eos_token_ids and not request.sampling.ignore_eos:
            return FinishReason.STOP
        if len(self.output) >= request.output_limit(context_limit):
            return FinishReason.LENGTH
        return None

    def outcome(self, now: float) -> Outcome:
        facts = self.facts
        return Outcome(
            arrived_s=facts.arrived_s,
            dispatched_s=facts.dispatched_s,
            first_token_s=facts.first_token_s,
            decode_start_s=facts.decode_start_s,
            last_token_s=facts.last_token_s,
            ended_s=now,
            output_tokens=len(self.output),
            cached_tokens=facts.cached_tokens or 0,
            prefill_node=facts.prefill_node,
            decode_node=facts.decode_node,
            prefill_node_s=facts.prefill_node_s,
            transfer_node_s=facts.transfer_node_s,
            transfer_bytes=facts.transfer_bytes,
            retries=self.retries,
            preemptions=facts.preemptions,
        )
