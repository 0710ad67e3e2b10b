"""What a node's effects are to a router: the same events that come over an Attach stream."""

from __future__ import annotations

from baton.core.errors import InternalError
from baton.core.node_effects import Ended, Started, TokensOut
from baton.core.request import FinishReason
from baton.router.events import NodeFailed, NodeFinished, PrefillStarted, TokensMade

NodeEvent = PrefillStarted | TokensMade | NodeFinished | NodeFailed


def node_event(node_id: str, effect: Started | TokensOut | Ended) -> NodeEvent:
    request_id, attempt = effect.key
    if isinstance(effect, TokensOut):
        return TokensMade(request_id, attempt, node_id, effect.index, effect.token_ids)
    if isinstance(effect, Started):
        return PrefillStarted(
            request_id, attempt, node_id, effect.cached_tokens, effect.queued_s, effect.fetched_tokens
        )
    if effect.reason is FinishReason.ERROR:
        error = effect.error or InternalError("the node gave no reason")
        return NodeFailed(request_id, attempt, node_id, error)
    return NodeFinished(request_id, attempt, node_id, effect.reason, effect.output_tokens, effect.preemptions)
