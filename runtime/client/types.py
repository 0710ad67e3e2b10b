"""What the client library gives back: plain, frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton.core.batch import TokenLogprobs
from baton.core.request import FinishReason

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text; token ids; or a chat, as messages with "role" and "content"."""


@dataclass(frozen=True, slots=True)
class Usage:
    """cached_tokens: prompt tokens found in a prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on the router's clock; queue + prefill + transfer + decode = total. None: never happened. The
    *_node_s ones are the nodes' own measurements."""

    queue_s: float
    prefill_s: float
    transfer_s: float
    decode_s: float
    total_s: float
    ttft_s: float | None
    tpot_s: float | None
    prefill_node_s: float
    transfer_node_s: float
    transfer_bytes: int
    prefill_node: str
    decode_node: str
    retries: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Delta:
    """One message of a stream. index: which choice. finish_reason: set in the choice's last one; usage and
    timings: in the stream's last one."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    stop_token_id: int | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole continuation."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    stop_text: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `text`, `token_ids`, ... are those of the first choice."""

    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    request_id: str = ""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class Model:
    """max_model_len: prompt and output together, tokens."""

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """How to continue a prompt; None: the server's default. Sampling fields: see core.SamplingParams."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    bad_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    include_stop: bool = False
    skip_special_tokens: bool | None = None
    tokens_only: bool = False
    echo: bool = False
    continue_final_message: bool = False
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    priority: int = 0
    salt: str = ""
    request_id: str = ""
