"""`baton generate`: ask a running deployment, show the answer as it comes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from baton.cli.calls import connected, interruptible
from baton.cli.terminal import EXIT_FAILURE, notes
from baton.core.errors import InvalidArgument
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1.common_pb2 import FinishReason
from baton.proto.v1.inference_pb2_grpc import InferenceStub
from baton.runtime.client import convert
from baton.runtime.client.types import Prompt


@dataclass
class Answer:
    """One choice, put together from its stream."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    usage: pb.Usage = field(default_factory=pb.Usage)
    timings: pb.Timings = field(default_factory=pb.Timings)

    def add(self, response: pb.GenerateResponse) -> None:
        self.text += response.text
        self.token_ids.extend(response.token_ids)
        self.logprobs.extend(_logprob(item) for item in response.logprobs)
        if response.finish_reason:
            name = FinishReason.Name(response.finish_reason)
            self.finish_reason = name.removeprefix("FINISH_REASON_").lower()
        if response.HasField("usage"):
            self.usage = response.usage
        if response.HasField("timings"):
            self.timings = response.timings

    def as_json(self) -> str:
        """One object; numbers that were not measured are left out."""
        return json.dumps(
            {
                "text": self.text,
                "token_ids": self.token_ids,
                "logprobs": self.logprobs or None,
                "finish_reason": self.finish_reason,
                "usage": _fields(self.usage),
                "timings": _fields(self.timings),
            },
            ensure_ascii=False,
        )


@dataclass(frozen=True)
class Options:
    """None: the server's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    timeout_s: float | None = None

    def request(self, prompt: Prompt) -> pb.GenerateRequest:
        """InvalidArgument names the option that cannot even be sent."""
        given = {name: value for name, value in vars(self).items() if name != "timeout_s"}
        request: pb.GenerateRequest = convert.request(prompt, convert.options_of(given), "")
        return request


def stream(
    stub: InferenceStub, request: pb.GenerateRequest, answer: Answer, timeout_s: float | None
) -> Iterator[str]:
    """Pieces of text as they come; `answer` is filled meanwhile. Leaving early cancels the request."""
    call = stub.Generate(request, timeout=timeout_s)
    responses = iter(call)

    def received() -> pb.GenerateResponse | None:
        with interruptible(call.cancel):
            return next(responses, None)

    try:
        for response in iter(received, None):
            answer.add(response)
            if response.text:
                yield response.text
    finally:
        call.cancel()


def generate(endpoint: str, prompt: str, options: Options, *, chat: bool, as_json: bool) -> None:
    """Print the continuation of a prompt, or the answer to it with `chat`."""
    if options.logprobs is not None and not as_json:
        raise InvalidArgument("--logprobs: they are printed with --json only")
    request = options.request([{"role": "user", "content": prompt}] if chat else prompt)
    answer = Answer()
    with connected(endpoint) as channel:
        pieces = stream(InferenceStub(channel), request, answer, options.timeout_s)
        if as_json:
            for _ in pieces:
                pass
        else:
            show_all(pieces, answer)
    if as_json:
        print(answer.as_json())
    else:
        note_limit(answer, options)


def show_all(pieces: Iterable[str], answer: Answer) -> None:
    """Show the text as it comes; whatever ends it, what is said next begins on a line of its own."""
    try:
        for text in pieces:
            show(text)
    except BaseException:
        if answer.text or sys.stdout.isatty():
            show("\n")
        raise
    show("\n")


def note_limit(answer: Answer, options: Options) -> None:
    """Tell a person why an answer stops in the middle of a sentence."""
    if answer.finish_reason != "length" or not notes.is_terminal:
        return
    reached = answer.usage.completion_tokens == options.max_tokens
    limit = f"--max-tokens {options.max_tokens}" if reached else "the model's context limit"
    notes.print(f"[dim](stopped at {limit})[/]")


def show(text: str) -> None:
    """To standard output, at once. The end, quietly, if who read it has gone."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
        raise SystemExit(EXIT_FAILURE) from None


def _logprob(item: Any) -> dict[str, Any]:
    top = [{"token_id": t.token_id, "logprob": t.logprob} for t in item.top]
    return {"token_id": item.token_id, "logprob": item.logprob, "top": top}


def _fields(message: Any) -> dict[str, Any]:
    found = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # 64-bit numbers become text in protobuf's JSON; here a program wants numbers.
    return {key: int(value) if key == "transfer_bytes" else value for key, value in found.items()}
