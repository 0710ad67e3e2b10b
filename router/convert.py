"""Node messages as the machine's events, and nodes as the machine knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from baton.proto.v1 import node_pb2 as pb
from baton.router.events import (
    Event,
    HandedOff,
    NodeFailed,
    NodeFinished,
    NodeInfo,
    PrefillStarted,
    TokensMade,
)
from baton.runtime import checks, codec
from baton.runtime.codec_node import Registration


def node_info(facts: Registration) -> NodeInfo:
    return NodeInfo(
        node_id=facts.node_id,
        incarnation=facts.incarnation,
        address=facts.address,
        host_id=facts.host_id,
        fingerprint=facts.model.fingerprint,
        block_size=facts.layout.block_size,
        num_blocks=facts.layout.num_blocks,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        max_model_len=facts.model.max_model_len,
        load=facts.load,
        kv_dtype=facts.layout.dtype,
        step_tokens=facts.step_tokens,
    )


def node_events(node_id: str, message: pb.AttachResponse) -> Iterator[Event]:
    """The events of one engine step, in order. InvalidArgument: a value no sane node sends."""
    for event in message.events:
        kind = event.WhichOneof("event")
        if kind == "tokens":  # by far the most frequent
            yield _tokens(node_id, event)
        elif kind is not None:  # None: a kind that a newer node knows
            yield _OTHERS[kind](node_id, event)


def _tokens(node_id: str, event: pb.NodeEvent) -> TokensMade:
    tokens = event.tokens
    made = TokensMade(event.request_id, event.attempt, node_id, tokens.index, tuple(tokens.ids))
    if not tokens.logprobs and not tokens.prompt_logprobs:
        return made
    return TokensMade(
        made.request_id,
        made.attempt,
        node_id,
        made.index,
        made.token_ids,
        codec.logprobs_from_proto(tokens.logprobs),
        codec.logprobs_from_proto(tokens.prompt_logprobs),
    )


def _started(node_id: str, event: pb.NodeEvent) -> PrefillStarted:
    return PrefillStarted(
        event.request_id,
        event.attempt,
        node_id,
        event.started.cached_tokens,
        checks.finite("started.queued_s", event.started.queued_s),
        event.started.fetched_tokens,
    )


def _handed_off(node_id: str, event: pb.NodeEvent) -> HandedOff:
    facts = event.handed_off
    return HandedOff(
        event.request_id,
        event.attempt,
        node_id,
        checks.finite("handed_off.prefill_s", facts.prefill_s),
        checks.finite("handed_off.transfer_s", facts.transfer_s),
        facts.transfer_bytes,
    )


def _finished(node_id: str, event: pb.NodeEvent) -> NodeFinished:
    return NodeFinished(
        event.request_id,
        event.attempt,
        node_id,
        codec.reason_from_proto(event.finished.reason),
        event.finished.output_tokens,
        event.finished.preemptions,
    )


def _failed(node_id: str, event: pb.NodeEvent) -> NodeFailed:
    return NodeFailed(event.request_id, event.attempt, node_id, codec.fault_from_proto(event.failed))


_OTHERS: dict[str, Callable[[str, Any], Event]] = {
    "started": _started,
    "handed_off": _handed_off,
    "finished": _finished,
    "failed": _failed,
}
