"""`baton generate` and `baton chat`: ask a running deployment, show the answer as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from baton.cli.calls import connected
from baton.cli.terminal import notes
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1.common_pb2 import FinishReason, SamplingParams
from baton.proto.v1.inference_pb2_grpc import InferenceStub


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

    def request(self) -> pb.GenerateRequest:
        """A request without its input."""
        sampling = SamplingParams(
            temperature=self.temperature, top_p=self.top_p, seed=self.seed, logprobs=self.logprobs
        )
        return pb.GenerateRequest(sampling=sampling, max_tokens=self.max_tokens, stop=self.stop)


def stream(
    stub: InferenceStub, request: pb.GenerateRequest, answer: Answer, timeout_s: float | None
) -> Iterator[str]:
    """Pieces of text as they come; `answer` is filled meanwhile. Leaving early cancels the request."""
    call = stub.Generate(request, timeout=timeout_s)
    try:
        for response in call:
            answer.add(response)
            if response.text:
                yield response.text
    finally:
        call.cancel()


def generate(endpoint: str, prompt: str, options: Options, *, chat: bool, as_json: bool) -> None:
    """Print the continuation of a prompt, or the answer to it with `chat`."""
    request = options.request()
    if chat:
        request.chat.messages.add(role="user", content=prompt)
    else:
        request.text = prompt
    answer = Answer()
    with connected(endpoint) as channel:
        for text in stream(InferenceStub(channel), request, answer, options.timeout_s):
            if not as_json:
                show(text)
    if as_json:
        print(answer.as_json())
    else:
        show("\n")


def chat(endpoint: str, options: Options, system: str | None) -> None:
    """A conversation. Ctrl-C stops an answer; Ctrl-C or Ctrl-D at the prompt ends the conversation."""
    history = pb.Chat()
    if system:
        history.messages.add(role="system", content=system)
    with connected(endpoint) as channel:
        stub = InferenceStub(channel)
        if sys.stdin.isatty():
            notes.print("[dim]Ctrl-C stops an answer, Ctrl-D ends the conversation[/]")
        while (line := _ask()) is not None:
            if not line.strip():
                continue
            history.messages.add(role="user", content=line)
            request = options.request()
            request.chat.CopyFrom(history)
            answer = Answer()
            try:
                for text in stream(stub, request, answer, options.timeout_s):
                    show(text)
            except KeyboardInterrupt:
                notes.print("[dim](stopped)[/]")
            show("\n")
            history.messages.add(role="assistant", content=answer.text)


def show(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _ask() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        return None


def _logprob(item: Any) -> dict[str, Any]:
    top = [{"token_id": t.token_id, "logprob": t.logprob} for t in item.top]
    return {"token_id": item.token_id, "logprob": item.logprob, "top": top}


def _fields(message: Any) -> dict[str, Any]:
    found = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # 64-bit numbers become text in protobuf's JSON; here a program wants numbers.
    return {key: int(value) if key == "transfer_bytes" else value for key, value in found.items()}
