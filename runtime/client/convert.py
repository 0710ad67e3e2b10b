"""Between the client library's values and the wire. Shared by the asyncio and the threaded client."""

from __future__ import annotations

import difflib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import grpc

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError, InternalError, InvalidArgument
from baton.core.request import FinishReason
from baton.proto.v1 import common_pb2, inference_pb2
from baton.runtime import codec
from baton.runtime.client.types import Choice, Completion, Delta, Model, Options, Prompt, Timings, Usage
from baton.runtime.grpc_errors import told_to_client

_SAMPLING = (
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
_SAMPLING_LISTS = ("logit_bias", "stop_token_ids", "bad_token_ids")
_PLAIN = ("include_stop", "tokens_only", "echo", "priority", "salt", "request_id")
_OPTIONAL = ("max_tokens", "n", "skip_special_tokens")
_UNFIT = (TypeError, ValueError, KeyError, OverflowError, struct.error)


def request(prompt: Prompt, options: Options, model: str) -> inference_pb2.GenerateRequest:
    """InvalidArgument: a value that does not even fit the wire."""
    values = {name: getattr(options, name) for name in _PLAIN}
    values |= {n: value for n in _OPTIONAL if (value := getattr(options, n)) is not None}
    sampling = {n: value for n in _SAMPLING if (value := getattr(options, n)) is not None}
    sampling |= {n: getattr(options, n) for n in _SAMPLING_LISTS}
    values |= checked(lambda: prompt_field(prompt, options.continue_final_message), "prompt")
    values |= {"model": model, "stop": options.stop}
    values["sampling"] = built(common_pb2.SamplingParams, sampling)
    values["slo"] = built(common_pb2.Slo, {"ttft_s": options.ttft_slo_s, "tpot_s": options.tpot_slo_s})
    return built(inference_pb2.GenerateRequest, values)


def options_of(given: Mapping[str, Any]) -> Options:
    """TypeError for a name that is no option: a slip in the caller's code, not in its data."""
    names = [each.name for each in fields(Options)]
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            raise TypeError(f"unknown option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return Options(**given)


def prompt_field(prompt: Prompt, continue_final_message: bool = False) -> dict[str, Any]:
    """The prompt as the one member of the request's `input`."""
    if isinstance(prompt, str):
        return {"text": prompt}
    if prompt and isinstance(prompt[0], int):
        return {"token_ids": inference_pb2.TokenIds(ids=prompt)}  # type: ignore[arg-type]
    if not prompt:
        return {"token_ids": inference_pb2.TokenIds()}
    messages = [inference_pb2.ChatMessage(role=m["role"], content=m["content"]) for m in prompt]  # type: ignore[index]
    return {"chat": inference_pb2.Chat(messages=messages, continue_final_message=continue_final_message)}


def checked(build: Callable[[], Any], field: str = "") -> Any:
    """What `build` makes; a value of the wrong type or beyond 64 bits becomes InvalidArgument."""
    try:
        return build()
    except _UNFIT as error:
        unicode = isinstance(error, UnicodeError)
        why = "is not text that UTF-8 can hold" if unicode else f"cannot be sent: {error}"
        raise InvalidArgument(why, field=field) from None


def built(kind: Any, values: Mapping[str, Any]) -> Any:
    """A message of these fields; InvalidArgument names the first that does not fit."""
    try:
        return kind(**values)
    except _UNFIT:
        for name, value in values.items():
            try:
                kind(**{name: value})
            except _UNFIT as error:
                raise InvalidArgument(_unfit(value, error), field=name) from None
        raise


def _unfit(value: Any, error: Exception) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    if isinstance(error, UnicodeError):
        return f"is not text that UTF-8 can hold: {shown}"
    if type(value) is int:
        return f"is out of range: {shown}"
    return f"cannot be sent: {shown} ({error})"


def delta(message: inference_pb2.GenerateResponse) -> Delta:
    ended = message.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED
    return Delta(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=codec.logprobs_from_proto(message.logprobs),
        prompt_logprobs=codec.logprobs_from_proto(message.prompt_logprobs),
        finish_reason=codec.reason_from_proto(message.finish_reason) if ended else None,
        stop_text=message.stop_text if message.HasField("stop_text") else None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        usage=_usage(message.usage) if message.HasField("usage") else None,
        timings=_timings(message.timings) if message.HasField("timings") else None,
        request_id=message.request_id,
    )


def model(message: common_pb2.ModelInfo) -> Model:
    return Model(message.name, message.vocab_size, message.max_model_len, tuple(message.eos_token_ids))


@dataclass(slots=True)
class _Parts:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: Delta | None = None


class Collector:
    """Puts a stream's messages together again."""

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}
        self._request_id = ""
        self._last: Delta | None = None

    def add(self, item: Delta) -> None:
        parts = self._parts.setdefault(item.index, _Parts())
        parts.text.append(item.text)
        parts.token_ids.extend(item.token_ids)
        parts.logprobs.extend(item.logprobs)
        parts.prompt_logprobs.extend(item.prompt_logprobs)
        if item.finish_reason is not None:
            parts.last = item
        self._request_id = item.request_id or self._request_id
        self._last = item

    def completion(self) -> Completion:
        """InternalError: the stream ended before it was complete."""
        last = self._last
        if last is None or last.usage is None or last.timings is None:
            raise InternalError("the server ended the stream too early")
        choices = tuple(_choice(index, self._parts[index]) for index in sorted(self._parts))
        return Completion(choices, last.usage, last.timings, self._request_id)


def collect(items: Iterable[Delta]) -> Completion:
    collector = Collector()
    for item in items:
        collector.add(item)
    return collector.completion()


def error_of(error: grpc.RpcError, address: str) -> BatonError:
    return told_to_client(error, address)


def _choice(index: int, parts: _Parts) -> Choice:
    last = parts.last
    return Choice(
        index=index,
        text="".join(parts.text),
        token_ids=tuple(parts.token_ids),
        finish_reason=FinishReason.ERROR if last is None else last.finish_reason or FinishReason.ERROR,
        logprobs=tuple(parts.logprobs),
        prompt_logprobs=tuple(parts.prompt_logprobs),
        stop_text=None if last is None else last.stop_text,
        stop_token_id=None if last is None else last.stop_token_id,
    )


def _usage(message: inference_pb2.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


def _timings(message: inference_pb2.Timings) -> Timings:
    return Timings(
        queue_s=message.queue_s,
        prefill_s=message.prefill_s,
        transfer_s=message.transfer_s,
        decode_s=message.decode_s,
        total_s=message.total_s,
        ttft_s=message.ttft_s if message.HasField("ttft_s") else None,
        tpot_s=message.tpot_s if message.HasField("tpot_s") else None,
        prefill_node_s=message.prefill_node_s,
        transfer_node_s=message.transfer_node_s,
        transfer_bytes=message.transfer_bytes,
        prefill_node=message.prefill_node,
        decode_node=message.decode_node,
        retries=message.retries,
        preemptions=message.preemptions,
    )
