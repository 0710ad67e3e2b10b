"""What happened to one request, as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from baton.core.request import Slo
from baton.sim.results import NO_SLO


class Outcome(StrEnum):
    """OK and REJECTED aside, each is a kind of failure."""

    OK = "ok"
    REJECTED = "rejected"  # shed before its first token: HTTP 429 or 503, RESOURCE_EXHAUSTED
    UNREACHABLE = "unreachable"  # no connection
    DISCONNECTED = "disconnected"  # the connection or the stream ended in the middle
    MALFORMED = "malformed"  # an answer that the protocol does not allow
    TIMEOUT = "timeout"  # longer than the client would wait
    BAD_REQUEST = "bad_request"  # the server says that the client is wrong
    SERVER_ERROR = "server_error"
    UNFINISHED = "unfinished"  # still under way when the run was ended

    @property
    def failed(self) -> bool:
        return self not in (Outcome.OK, Outcome.REJECTED)


@dataclass(slots=True)
class Record:
    """All times in seconds since the run began, on the client's monotonic clock.

    intended_s: when the workload says that the request comes; every latency counts from here, so that a
    client or a server that holds requests back cannot hide it. sent_s: when it was handed to the network
    library. chunks: (time, tokens) of each piece of the answer that holds any. prompt_tokens, asked_tokens:
    as the workload wants them; used_prompt_tokens, output_tokens: as the server counts them, where it says.
    """

    number: int
    intended_s: float
    prompt_tokens: int
    asked_tokens: int
    slo: Slo = NO_SLO
    sent_s: float = 0.0
    ended_s: float = 0.0
    outcome: Outcome = Outcome.UNFINISHED
    chunks: list[tuple[float, int]] = field(default_factory=list)
    output_tokens: int = 0
    used_prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""
    retry_after_s: float | None = None

    @property
    def lateness_s(self) -> float:
        """The generator's own fault."""
        return self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """None: no token came. Of a request that failed later it counts, too: the user saw it."""
        return self.chunks[0][0] - self.intended_s if self.chunks else None

    @property
    def e2e_s(self) -> float | None:
        """To the last token; None unless the answer is whole."""
        if self.outcome is not Outcome.OK:
            return None
        return (self.chunks[-1][0] if self.chunks else self.ended_s) - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None for fewer than two tokens, for an answer in one piece
        (which has no pace), and for one that is not whole."""
        if self.outcome is not Outcome.OK or len(self.chunks) < 2 or self.output_tokens < 2:
            return None
        return (self.chunks[-1][0] - self.chunks[0][0]) / (self.output_tokens - 1)

    def gaps_s(self) -> list[float]:
        """Seconds between tokens. A piece with k tokens is k gaps: its time divided among them."""
        found: list[float] = []
        for (before_s, _), (at_s, tokens) in zip(self.chunks, self.chunks[1:], strict=False):
            found += [(at_s - before_s) / tokens] * tokens
        return found

    @property
    def longest_gap_s(self) -> float | None:
        """The longest silence after the first token."""
        pairs = zip(self.chunks, self.chunks[1:], strict=False)
        return max((after - before for (before, _), (after, _) in pairs), default=None)


def shared_out(tokens: int, pieces: int) -> list[int]:
    """`tokens` over `pieces` as evenly as whole numbers go, at least one each: for answers whose tokens are
    counted only as a whole."""
    tokens = max(tokens, pieces)
    return [tokens * (i + 1) // pieces - tokens * i // pieces for i in range(pieces)]
