"""Where a request's time went, from the machine's stamps: one clock, so the parts add up, none below zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.proto.v1 import inference_pb2 as pb
from baton.router.events import Outcome


@dataclass(frozen=True, slots=True)
class Legs:
    """Seconds. queue + prefill + transfer + decode = total; None: never happened."""

    queue_s: float
    prefill_s: float
    transfer_s: float
    decode_s: float
    total_s: float
    ttft_s: float | None
    tpot_s: float | None


def legs(outcome: Outcome, received_s: float, output_tokens: int) -> Legs:
    """received_s: when the request came in, before it was tokenized. output_tokens: those the client got."""
    start = min(received_s, outcome.arrived_s)
    end = max(outcome.ended_s, start)
    dispatched = _between(start, outcome.dispatched_s, end)
    first = _between(dispatched, outcome.first_token_s, end)
    # A request that ended with its first token was never transferred.
    transferred = first if outcome.first_token_s is None else outcome.decode_start_s or first
    decode = _between(first, transferred, end)
    made = outcome.first_token_s is not None and output_tokens > 0
    tpot_s = None
    if made and output_tokens >= 2 and outcome.last_token_s is not None:
        tpot_s = max(0.0, _between(first, outcome.last_token_s, end) - first) / (output_tokens - 1)
    return Legs(
        queue_s=dispatched - start,
        prefill_s=first - dispatched,
        transfer_s=decode - first,
        decode_s=end - decode,
        total_s=end - start,
        ttft_s=first - start if made else None,
        tpot_s=tpot_s,
    )


def timings(outcomes: Sequence[Outcome], received_s: float, output_tokens: Sequence[int]) -> pb.Timings:
    """Of one call. With several choices the parts are those of the one that ended last, ttft_s is that of the
    first token of all, tpot_s the mean; retries, preemptions and bytes are sums."""
    each = [legs(o, received_s, n) for o, n in zip(outcomes, output_tokens, strict=True)]
    last = max(range(len(each)), key=lambda i: outcomes[i].ended_s)
    parts, outcome = each[last], outcomes[last]
    ttfts = [leg.ttft_s for leg in each if leg.ttft_s is not None]
    tpots = [leg.tpot_s for leg in each if leg.tpot_s is not None]
    return pb.Timings(
        queue_s=parts.queue_s,
        prefill_s=parts.prefill_s,
        transfer_s=parts.transfer_s,
        decode_s=parts.decode_s,
        total_s=parts.total_s,
        ttft_s=min(ttfts, default=None),
        tpot_s=sum(tpots) / len(tpots) if tpots else None,
        prefill_node_s=outcome.prefill_node_s,
        transfer_node_s=outcome.transfer_node_s,
        transfer_bytes=sum(o.transfer_bytes for o in outcomes),
        prefill_node=outcome.prefill_node,
        decode_node=outcome.decode_node,
        retries=sum(o.retries for o in outcomes),
        preemptions=sum(o.preemptions for o in outcomes),
    )


def _between(low: float, value: float | None, high: float) -> float:
    """`value` forced into [low, high]; the end of it where it never happened."""
    return high if value is None else min(max(value, low), high)
