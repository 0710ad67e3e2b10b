"""From a client's GenerateRequest to the requests that the machine schedules: checks, tokens, seeds."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from baton.core.errors import InvalidArgument, NotFound, PromptTooLong
from baton.core.model import ModelInfo
from baton.core.request import MAX_SEED, Request
from baton.core.slices import slices
from baton.proto.v1 import inference_pb2 as pb
from baton.runtime import checks, codec
from baton.runtime.grpc_channel import PIECE_BYTES

MAX_PROMPT_LOGPROBS = 2**23  # entries, those of top lists included: what a node and a router must hold


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask for. max_message_bytes: of the transport, between client and router."""

    max_message_bytes: int
    max_choices: int = 128
    max_stop_strings: int = 64
    max_stop_chars: int = 1024
    max_messages: int = 4096

    @property
    def piece_bytes(self) -> int:
        """Size of the messages that a long answer is cut into; what cannot be cut fits several times."""
        return min(PIECE_BYTES, self.max_message_bytes // 4)


class Encoder(Protocol):
    """The part of a tokenizer that prompts need. longest_token: bytes of text that a token spells at most;
    None: not known."""

    @property
    def longest_token(self) -> int | None: ...

    def encode(self, text: str) -> Sequence[int]: ...

    def encode_chat(
        self, messages: Sequence[tuple[str, str]], *, continue_final: bool = False
    ) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A client's call, ready to run: one request per choice."""

    client_id: str
    requests: tuple[Request, ...]
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    tokens_only: bool
    echo: bool
    text: str | None  # the prompt as the client wrote it, where that was text
    piece_bytes: int


def check_model(name: str, served: str) -> None:
    """NotFound unless `name` is the served model, or empty."""
    if name not in ("", served):
        raise NotFound(f"model {name[:256]!r} is not served here, {served!r} is", field="model")


def encode_input(msg: pb.GenerateRequest | pb.TokenizeRequest, encoder: Encoder, limits: Limits) -> list[int]:
    """Token ids of text or chat input. May take long for long text: keep it off the event loop."""
    if msg.WhichOneof("input") == "text":
        return list(encoder.encode(msg.text))
    if msg.WhichOneof("input") != "chat":
        raise InvalidArgument("give text, token_ids or a chat", field="input")
    chat = msg.chat
    checks.count("chat.messages", chat.messages, limits.max_messages)
    if not chat.messages:
        raise InvalidArgument("must hold at least one message", field="chat.messages")
    messages = [
        (checks.printable(f"chat.messages[{i}].role", message.role, most=64, least=1), message.content)
        for i, message in enumerate(chat.messages)
    ]
    return list(encoder.encode_chat(messages, continue_final=chat.continue_final_message))


def prepare(
    msg: pb.GenerateRequest, model: ModelInfo, encoder: Encoder, limits: Limits, internal_id: str
) -> Job:
    """Everything that can be wrong with a request is found here; InvalidArgument names the field."""
    checks.printable("request_id", msg.request_id)
    checks.text("salt", msg.salt, most=codec.MAX_SALT_CHARS)
    choices = checks.whole("n", msg.n, 1, limits.max_choices) if msg.HasField("n") else 1
    stop = _stop(msg, limits)
    given = msg.WhichOneof("input")
    if given == "token_ids":
        prompt: Sequence[int] = msg.token_ids.ids
    else:
        _check_text(msg, model, encoder)
        prompt = encode_input(msg, encoder, limits)
    request = _request(msg, codec.ids_from_proto(prompt), model, internal_id)
    _check_size(request, msg.sampling.ByteSize(), limits)
    seed = request.sampling.seed
    return Job(
        client_id=msg.request_id,
        requests=tuple(_choice(request, i, (seed + i) % (MAX_SEED + 1)) for i in range(choices)),
        stop=stop,
        include_stop=msg.include_stop,
        skip_special_tokens=msg.skip_special_tokens if msg.HasField("skip_special_tokens") else True,
        tokens_only=msg.tokens_only,
        echo=msg.echo,
        text=msg.text if given == "text" else None,
        piece_bytes=limits.piece_bytes,
    )


def _check_text(msg: pb.GenerateRequest, model: ModelInfo, encoder: Encoder) -> None:
    """Refuse at once what no number of tokens within the context could spell: tokenizing it takes a while."""
    text = (
        len(msg.text) if msg.WhichOneof("input") == "text" else sum(len(m.content) for m in msg.chat.messages)
    )
    if encoder.longest_token is not None and text > encoder.longest_token * model.max_model_len:
        raise PromptTooLong(
            f"has {text} characters, which are more tokens than the model's limit of {model.max_model_len}",
            field="prompt",
        )


def _request(msg: pb.GenerateRequest, prompt: tuple[int, ...], model: ModelInfo, internal_id: str) -> Request:
    sampling = codec.sampling_from_proto(msg.sampling)
    drawn = not msg.sampling.HasField("seed") or sampling.seed == -1
    request = Request(
        id=internal_id,
        prompt_ids=prompt,
        sampling=replace(sampling, seed=secrets.randbits(63)) if drawn else sampling,
        max_tokens=msg.max_tokens
        if msg.HasField("max_tokens")
        else max(1, model.max_model_len - len(prompt)),
        eos_token_ids=model.eos_token_ids,
        slo=codec.slo_from_proto(msg.slo),
        priority=msg.priority,
        salt=msg.salt,
    )
    request.validate(model.vocab_size, model.max_model_len)
    room = request.output_limit(model.max_model_len)
    if request.sampling.min_tokens > room:
        raise InvalidArgument(
            f"{request.sampling.min_tokens} is more than the {room} tokens that the context limit of "
            f"{model.max_model_len} leaves after a prompt of {len(prompt)}",
            field="min_tokens",
        )
    # What is asked for beyond the context limit is not an error: the limit ends the answer.
    return replace(request, max_tokens=room)


def _choice(request: Request, index: int, seed: int) -> Request:
    if index == 0:
        return request
    return replace(request, id=f"{request.id}-{index}", sampling=replace(request.sampling, seed=seed))


def _stop(msg: pb.GenerateRequest, limits: Limits) -> tuple[str, ...]:
    checks.count("stop", msg.stop, limits.max_stop_strings)
    for i, text in enumerate(msg.stop):
        checks.text(f"stop[{i}]", text, most=limits.max_stop_chars, least=1)
    return tuple(msg.stop)


def _check_size(request: Request, sampling_bytes: int, limits: Limits) -> None:
    """What the request becomes on later hops must fit their messages too: found out here, not half-way."""
    largest = max(max(part) for part in slices(request.prompt_ids))
    id_bytes = max(1, (largest.bit_length() + 6) // 7)
    size = id_bytes * (len(request.prompt_ids) + request.max_tokens) + sampling_bytes
    if size > limits.max_message_bytes:
        raise InvalidArgument(
            f"{len(request.prompt_ids)} tokens take up to {size} bytes, the limit on a message is "
            f"{limits.max_message_bytes} bytes",
            field="prompt",
        )
    top = request.sampling.prompt_logprobs
    if top is not None and (entries := len(request.prompt_ids) * (top + 1)) > MAX_PROMPT_LOGPROBS:
        raise InvalidArgument(
            f"{top} for each of {len(request.prompt_ids)} tokens are {entries} entries, the limit is "
            f"{MAX_PROMPT_LOGPROBS}",
            field="prompt_logprobs",
        )
