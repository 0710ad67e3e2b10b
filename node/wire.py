"""Engine effects as messages for routers."""

from __future__ import annotations

from dataclasses import replace

from baton.core.errors import InternalError
from baton.core.node_effects import Ended, Key, Started, TokensOut
from baton.core.request import FinishReason
from baton.proto.v1 import node_pb2 as pb
from baton.runtime import codec
from baton.runtime.grpc_channel import PIECE_BYTES


def parts(effect: Started | TokensOut | Ended) -> list[pb.NodeEvent | TokensOut]:
    """What becomes of an effect: its event; or where that would be large, tokens with a piece of the prompt's
    logprobs each, in order, to be made into events one by one. The tokens themselves come with the last."""
    if not isinstance(effect, TokensOut) or not effect.prompt_logprobs:
        return [event(effect)]
    entries = effect.prompt_logprobs
    entry_bytes = codec.LOGPROB_BYTES * (1 + max(len(entry.top) for entry in entries))
    count = max(1, PIECE_BYTES // entry_bytes)
    if len(entries) <= count:
        return [event(effect)]
    pieces = [entries[start : start + count] for start in range(0, len(entries), count)]
    only = replace(effect, token_ids=(), logprobs=())
    return [
        *(replace(only, prompt_logprobs=piece) for piece in pieces[:-1]),
        replace(effect, prompt_logprobs=pieces[-1]),
    ]


def event(effect: Started | TokensOut | Ended) -> pb.NodeEvent:
    request_id, attempt = effect.key
    match effect:
        case Started(_, cached_tokens, queued_s, fetched_tokens):
            started = pb.Started(
                cached_tokens=cached_tokens, queued_s=queued_s, fetched_tokens=fetched_tokens
            )
            return pb.NodeEvent(request_id=request_id, attempt=attempt, started=started)
        case TokensOut(_, index, token_ids, logprobs, prompt_logprobs):
            tokens = pb.Tokens(index=index, ids=token_ids)
            if logprobs:
                tokens.logprobs.extend(codec.logprobs_to_proto(logprobs))
            if prompt_logprobs:
                tokens.prompt_logprobs.extend(codec.logprobs_to_proto(prompt_logprobs))
            return pb.NodeEvent(request_id=request_id, attempt=attempt, tokens=tokens)
        case Ended(_, FinishReason.ERROR, error=error):
            fault = codec.fault_to_proto(error or InternalError("the node gave no reason"))
            return pb.NodeEvent(request_id=request_id, attempt=attempt, failed=fault)
        case Ended(_, reason, output_tokens, preemptions):
            finished = pb.Finished(
                reason=codec.reason_to_proto(reason), output_tokens=output_tokens, preemptions=preemptions
            )
            return pb.NodeEvent(request_id=request_id, attempt=attempt, finished=finished)


def handed_off(key: Key, prefill_s: float, transfer_s: float, payload_bytes: int) -> pb.NodeEvent:
    done = pb.HandedOff(prefill_s=prefill_s, transfer_s=transfer_s, transfer_bytes=payload_bytes)
    return pb.NodeEvent(request_id=key[0], attempt=key[1], handed_off=done)
