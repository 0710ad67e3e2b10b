"""From bodies and headers to the GenerateRequests that gRPC clients would have sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.core.errors import InvalidArgument
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import inference_pb2 as pb
from baton.router.http import headers as given
from baton.router.http.fields import ChatBody, CompletionBody, GenerateBody
from baton.router.http.messages import chat_of
from baton.router.http.prompts import prompts_of
from baton.router.prepare import Limits

COMPLETION_TOKENS = 16  # OpenAI's default for completions; a chat's is the rest of the context

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "seed",
)

_NAMES = {
    "request_id": given.REQUEST_ID,
    "slo.ttft_s": given.SLO_TTFT,
    "slo.tpot_s": given.SLO_TPOT,
    "salt": "cache_salt",
    "include_stop": "include_stop_str_in_output",
    "message": "",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client wants. requests: one per prompt, alike but for the prompt. drop_output: it asked for no
    tokens at all, and nodes always make one. names: of the core's fields, here."""

    requests: Sequence[pb.GenerateRequest]
    names: Mapping[str, str]
    stream: bool
    include_usage: bool
    token_ids: bool
    timings: bool
    drop_output: bool = False
    logprobs: bool = False
    echo: bool = False

    @property
    def choices_each(self) -> int:
        """Of every prompt."""
        first = self.requests[0]
        return first.n if first.HasField("n") else 1


def completion(body: CompletionBody, headers: Mapping[str, str], limits: Limits) -> Asked:
    """InvalidArgument names fields as this API does, or as `Asked.names` maps them."""
    prompts = prompts_of(body.prompt, limits.max_choices)
    if body.suffix:
        raise InvalidArgument("is not supported", field="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidArgument("is not supported unless it equals n", field="best_of")
    if body.return_timings and len(prompts) > 1:
        raise InvalidArgument("is possible with one prompt only", field="return_timings")
    common_part = _request(body, headers)
    drop_output = body.max_tokens == 0
    common_part.max_tokens = _max_tokens(body, drop_output)
    common_part.echo = bool(body.echo)
    _set_logprobs(common_part.sampling, body.logprobs, echo=bool(body.echo))
    requests = []
    for prompt in prompts:
        request = pb.GenerateRequest()
        request.CopyFrom(common_part)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        requests.append(request)
    if len(prompts) * (body.n or 1) > limits.max_choices:
        raise InvalidArgument(
            f"{body.n} choices of {len(prompts)} prompts are more than {limits.max_choices}", field="n"
        )
    return _asked(
        body,
        requests,
        _NAMES | {"prompt_logprobs": "logprobs"},
        drop_output=drop_output,
        logprobs=body.logprobs is not None,
        echo=bool(body.echo),
    )


def chat(body: ChatBody, headers: Mapping[str, str], limits: Limits) -> Asked:
    """As `completion`."""
    _refuse(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidArgument("needs logprobs to be true", field="top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidArgument("cannot be given together with max_tokens", field="max_completion_tokens")
    going_on = bool(body.continue_final_message)
    if body.add_generation_prompt is not None and body.add_generation_prompt == going_on:
        raise InvalidArgument(
            "a new message is begun, or with continue_final_message the last one is continued",
            field="add_generation_prompt",
        )
    request = _request(body, headers)
    request.chat.CopyFrom(chat_of(body.messages, limits.max_messages))
    request.chat.continue_final_message = going_on
    newer = body.max_completion_tokens
    most = body.max_tokens if newer is None else newer
    if most is not None:
        request.max_tokens = most
    _set_logprobs(request.sampling, (body.top_logprobs or 0) if body.logprobs else None, echo=False)
    names = {"logprobs": "top_logprobs"} | dict.fromkeys(("chat", "prompt", "chat.messages"), "messages")
    if newer is not None:
        names["max_tokens"] = "max_completion_tokens"
    return _asked(body, [request], _NAMES | names, logprobs=bool(body.logprobs))


def _asked(
    body: GenerateBody, requests: Sequence[pb.GenerateRequest], names: Mapping[str, str], **more: bool
) -> Asked:
    if body.stream_options is not None and not body.stream:
        raise InvalidArgument("is possible with stream only", field="stream_options")
    return Asked(
        requests,
        names,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        token_ids=bool(body.return_token_ids),
        timings=bool(body.return_timings),
        **more,
    )


def _request(body: GenerateBody, headers: Mapping[str, str]) -> pb.GenerateRequest:
    """All but the prompt and what goes with its kind."""
    sampling = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    request = pb.GenerateRequest(
        model=body.model or "",
        request_id=given.request_id(headers),
        slo=given.slo(headers),
        sampling=common.SamplingParams(**sampling, logit_bias=_bias(body.logit_bias)),
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
        include_stop=bool(body.include_stop_str_in_output),
        priority=body.priority or 0,
        salt=body.cache_salt or "",
    )
    if body.n is not None:
        request.n = body.n
    if body.skip_special_tokens is not None:
        request.skip_special_tokens = body.skip_special_tokens
    return request


def _bias(bias: dict[str, float] | None) -> dict[int, float]:
    found = {}
    for key, value in (bias or {}).items():
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            raise InvalidArgument("keys must be token ids", field="logit_bias")
        found[int(key)] = value
    return found


def _max_tokens(body: GenerateBody, drop_output: bool) -> int:
    if drop_output:
        return 1
    if body.max_tokens is not None and body.max_tokens < 0:
        raise InvalidArgument(f"must be at least 0, got {body.max_tokens}", field="max_tokens")
    return COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens


def _set_logprobs(sampling: common.SamplingParams, top: int | None, *, echo: bool) -> None:
    if top is None:
        return
    sampling.logprobs = top
    if echo:  # the prompt's tokens stand in the same lists
        sampling.prompt_logprobs = top


_UNSUPPORTED: Mapping[str, Callable[[ChatBody], object]] = {
    "tools": lambda body: body.tools,
    "functions": lambda body: body.functions,
    "tool_choice": lambda body: body.tool_choice not in (None, "none", "auto"),
    "function_call": lambda body: body.function_call not in (None, "none", "auto"),
    "response_format": lambda body: body.response_format not in (None, {"type": "text"}),
    "modalities": lambda body: body.modalities not in (None, ["text"]),
}


def _refuse(body: ChatBody) -> None:
    for name, unsupported in _UNSUPPORTED.items():
        if unsupported(body):
            raise InvalidArgument("is not supported", field=name)
