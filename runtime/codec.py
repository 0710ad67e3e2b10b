"""Requests, tokens and errors between their domain types and the wire. Nodes: `runtime.codec_node`.

From the wire, what needs no model is checked here (ranges of counts and times, lengths of names); what
depends on the vocabulary or the context limit is for `Request.validate`, which every receiver calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableSequence, Sequence

from baton.core.batch import LOGPROB_FLOOR, TokenLogprobs
from baton.core.errors import BatonError, Code, InvalidArgument, error_for
from baton.core.load import Role
from baton.core.model import ModelInfo
from baton.core.request import FinishReason, Request, SamplingParams, Slo
from baton.core.slices import SLICE, slices
from baton.proto.v1 import common_pb2 as pb
from baton.runtime import checks

LOGPROB_BYTES = 14  # of an entry, or one of its top list, on the wire at most: tags, length, id, float
MAX_ID_CHARS = 512
MAX_SALT_CHARS = 1024

_REASON_TO_WIRE = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_REASON_FROM_WIRE = {wire: reason for reason, wire in _REASON_TO_WIRE.items()}
_ROLE_TO_WIRE = {Role.PREFILL: pb.ROLE_PREFILL, Role.DECODE: pb.ROLE_DECODE, Role.BOTH: pb.ROLE_BOTH}
_ROLE_FROM_WIRE = {wire: role for role, wire in _ROLE_TO_WIRE.items()}

_SCALARS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "seed",
    "logprobs",
    "prompt_logprobs",
)


def ids_from_proto(ids: Sequence[int]) -> tuple[int, ...]:
    """A field of token ids; a long one in slices, see core.slices."""
    if len(ids) <= SLICE:
        return tuple(ids)
    found: list[int] = []
    for part in slices(ids):
        found += part
    return tuple(found)


def ids_to_proto(ids: Sequence[int], into: MutableSequence[int]) -> None:
    """Append to a field of token ids."""
    for part in slices(ids):
        into.extend(part)


def sampling_from_proto(msg: pb.SamplingParams) -> SamplingParams:
    """What the sender left out takes core's default. Ranges: SamplingParams.validate."""
    given = {name: getattr(msg, name) for name in _SCALARS if msg.HasField(name)}  # type: ignore[arg-type]
    return SamplingParams(
        **given,
        logit_bias=tuple(sorted(msg.logit_bias.items())),
        stop_token_ids=tuple(msg.stop_token_ids),
        bad_token_ids=tuple(msg.bad_token_ids),
    )


def sampling_to_proto(sampling: SamplingParams) -> pb.SamplingParams:
    msg = pb.SamplingParams(
        stop_token_ids=sampling.stop_token_ids,
        bad_token_ids=sampling.bad_token_ids,
        logit_bias=dict(sampling.logit_bias),
    )
    for name in _SCALARS:
        value = getattr(sampling, name)
        if value is not None:
            setattr(msg, name, value)
    return msg


def slo_from_proto(msg: pb.Slo) -> Slo:
    """InvalidArgument: a target that is not a positive, finite number of seconds."""
    targets: dict[str, float] = {}
    for name in ("ttft_s", "tpot_s"):
        if msg.HasField(name):
            value = checks.finite(f"slo.{name}", getattr(msg, name))
            if value == 0.0:
                raise InvalidArgument("must be more than 0", field=f"slo.{name}")
            targets[name] = value
    return Slo(**targets)


def slo_to_proto(slo: Slo) -> pb.Slo:
    return pb.Slo(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s)


def request_from_proto(msg: pb.NodeRequest) -> Request:
    """A request as a router sent it. InvalidArgument names the field. Call `validate` on the result."""
    return Request(
        id=checks.printable("id", msg.id, most=MAX_ID_CHARS, least=1),
        attempt=msg.attempt,
        prompt_ids=ids_from_proto(msg.prompt_ids),
        output_ids=ids_from_proto(msg.output_ids),
        sampling=sampling_from_proto(msg.sampling),
        max_tokens=checks.whole("max_tokens", msg.max_tokens, 1, 2**31 - 1),
        eos_token_ids=tuple(msg.eos_token_ids),
        slo=slo_from_proto(msg.slo),
        priority=msg.priority,
        salt=checks.text("salt", msg.salt, most=MAX_SALT_CHARS),
        timeout_s=checks.finite("timeout_s", msg.timeout_s) if msg.HasField("timeout_s") else None,
        waited_s=checks.finite("waited_s", msg.waited_s),
    )


async def checked_request(msg: pb.NodeRequest, model: ModelInfo) -> Request:
    """As `request_from_proto`, and validated for the model. A long prompt is looked at on a thread."""

    def check() -> Request:
        request = request_from_proto(msg)
        request.validate(model.vocab_size, model.max_model_len)
        return request

    short = len(msg.prompt_ids) + len(msg.output_ids) <= SLICE
    return check() if short else await asyncio.to_thread(check)


def request_to_proto(request: Request, into: pb.NodeRequest | None = None) -> pb.NodeRequest:
    """into: a part of another message, filled in place of a new one."""
    msg = pb.NodeRequest() if into is None else into
    msg.MergeFrom(_all_but_ids(request))
    ids_to_proto(request.prompt_ids, msg.prompt_ids)
    ids_to_proto(request.output_ids, msg.output_ids)
    return msg


def _all_but_ids(request: Request) -> pb.NodeRequest:
    return pb.NodeRequest(
        id=request.id,
        attempt=request.attempt,
        sampling=sampling_to_proto(request.sampling),
        max_tokens=request.max_tokens,
        eos_token_ids=request.eos_token_ids,
        slo=slo_to_proto(request.slo),
        priority=request.priority,
        salt=request.salt,
        timeout_s=request.timeout_s,
        waited_s=request.waited_s,
    )


def logprobs_from_proto(messages: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """Numbers that are not finite come out as LOGPROB_FLOOR, so that they can never reach a JSON encoder."""
    return tuple(
        TokenLogprobs(
            msg.token_id,
            _floored(msg.logprob),
            tuple(
                [
                    (top.token_id, p if LOGPROB_FLOOR < (p := top.logprob) <= 0.0 else _floored(p))
                    for top in msg.top
                ]
            ),
        )
        for msg in messages
    )


def logprobs_to_proto(entries: Sequence[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            token_id=entry.token_id,
            logprob=_floored(entry.logprob),
            top=[
                pb.TopLogprob(token_id=i, logprob=p if LOGPROB_FLOOR < p <= 0.0 else _floored(p))
                for i, p in entry.top
            ],
        )
        for entry in entries
    ]


def _floored(value: float) -> float:
    return value if LOGPROB_FLOOR < value <= 0.0 else (0.0 if 0.0 < value < 1e-3 else LOGPROB_FLOOR)


def reason_to_proto(reason: FinishReason) -> pb.FinishReason.ValueType:
    return _REASON_TO_WIRE[reason]


def reason_from_proto(value: int) -> FinishReason:
    """InvalidArgument for a value this version does not know."""
    try:
        return _REASON_FROM_WIRE[value]  # type: ignore[index]
    except KeyError:
        raise InvalidArgument(f"unknown finish reason {value}", field="reason") from None


def role_to_proto(role: Role) -> pb.Role.ValueType:
    return _ROLE_TO_WIRE[role]


def role_from_proto(value: int) -> Role:
    """InvalidArgument for a value this version does not know, and for "unspecified"."""
    try:
        return _ROLE_FROM_WIRE[value]  # type: ignore[index]
    except KeyError:
        raise InvalidArgument(f"unknown role {value}", field="role") from None


def fault_to_proto(error: BatonError) -> pb.Fault:
    return pb.Fault(
        code=error.code.value,
        message=error.message[:4096],
        field=error.field[:MAX_ID_CHARS],
        retry_after_s=error.retry_after_s,
    )


def fault_from_proto(msg: pb.Fault) -> BatonError:
    """The error a peer reported. A code this version does not know counts as INTERNAL."""
    try:
        code = Code(msg.code)
    except ValueError:
        code = Code.INTERNAL
    retry = checks.finite("retry_after_s", msg.retry_after_s) if msg.HasField("retry_after_s") else None
    return error_for(code, msg.message, field=msg.field, retry_after_s=retry)
