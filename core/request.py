"""A request and how its tokens are chosen. Immutable: validated once at the edge, then only read.

What "off" is for each sampling field is written beside it; the wire keeps the fields optional, so a field
that a client leaves out takes the default here, never proto3's zero.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from enum import Enum

from baton.core.errors import InvalidArgument, PromptTooLong
from baton.core.slices import SLICE, slices
from baton.core.value import value

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 1024
MAX_STOP_IDS = 1024
LOGIT_BIAS_LIMIT = 100.0
TPOT_SHARE = (
    0.95  # of a TPOT target is what steps are made for: who aims at the target itself misses half the time
)


class FinishReason(Enum):
    """Why a request ended. Exactly one per request."""

    STOP = "stop"  # EOS, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Token ids index the model's vocabulary.

    `seed` is always set by the edge (drawn at random when the client gives none): the noise of output
    position i is a function of (seed, i) alone, so a retry on another node continues the very same text.
    """

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0  # 1: off; 0: greedy
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off; over prompt and output (CTRL, arXiv:1909.05858)
    presence_penalty: float = 0.0  # 0: off; over output only
    frequency_penalty: float = 0.0  # 0: off; over output only
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias in [-100, 100]); -100 and below bans
    min_tokens: int = 0  # EOS and stop ids cannot be chosen before this many output tokens
    stop_token_ids: tuple[int, ...] = ()  # end the request; the id itself is the last output token
    bad_token_ids: tuple[int, ...] = ()  # never chosen
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None  # None: off; k: the chosen token's and the k most likely tokens'
    prompt_logprobs: int | None = None  # None: off; k: as above for each prompt token but the first

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_p == 0.0 or self.top_k == 1

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidArgument naming the first field out of range."""
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _check_int("top_k", self.top_k, -1, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        _check_int("seed", self.seed, -1, MAX_SEED)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, min(MAX_LOGPROBS, vocab_size))
        for name in ("stop_token_ids", "bad_token_ids"):
            ids = getattr(self, name)
            if len(ids) > MAX_STOP_IDS:
                raise InvalidArgument(f"at most {MAX_STOP_IDS} ids, got {len(ids)}", field=name)
            check_token_ids(name, ids, vocab_size)
        check_token_ids("logit_bias", tuple(i for i, _ in self.logit_bias), vocab_size)
        for token_id, bias in self.logit_bias:
            _check_number(f"logit_bias[{token_id}]", bias, -LOGIT_BIAS_LIMIT, LOGIT_BIAS_LIMIT)


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets in seconds; None: no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def validate(self) -> None:
        """Raise InvalidArgument naming the first target that is no positive number."""
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None:
                _check_number(f"slo.{name}", value, 0.0, math.inf, open_low=True)


@value
class Request:
    """One sequence to be continued, as router and nodes see it. `n > 1` is n of these, made at the edge.

    `prompt_ids` is what the client sent; `output_ids` is what earlier attempts already emitted, so that
    attempt k prefills prompt + output and samples output position len(output_ids) first. `max_tokens`
    counts all output, that of earlier attempts included.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 16
    eos_token_ids: tuple[int, ...] = ()
    attempt: int = 0
    output_ids: tuple[int, ...] = ()
    slo: Slo = field(default_factory=Slo)
    priority: int = 0  # lower runs first
    salt: str = ""  # requests share cached prefixes only within one salt
    timeout_s: float | None = None  # what is left of the client's deadline when this was sent
    waited_s: float = 0.0  # since it arrived, when this was sent: so much of its TTFT target is gone

    @property
    def prefill_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.output_ids

    def retried(self, output_ids: tuple[int, ...], timeout_s: float | None) -> Request:
        """The next attempt, continuing after `output_ids`."""
        return replace(self, attempt=self.attempt + 1, output_ids=output_ids, timeout_s=timeout_s)

    def validate(self, vocab_size: int, max_model_len: int) -> None:
        """Raise InvalidArgument naming the first field that cannot be served by such a model."""
        if not self.prompt_ids:
            raise InvalidArgument("must hold at least one token", field="prompt")
        check_token_ids("prompt", self.prompt_ids, vocab_size)
        check_token_ids("output_ids", self.output_ids, vocab_size)
        check_token_ids("eos_token_ids", self.eos_token_ids, vocab_size)
        if len(self.prompt_ids) + 1 > max_model_len:
            raise PromptTooLong(
                f"has {len(self.prompt_ids)} tokens, the model's limit is {max_model_len} for prompt and "
                f"output together, so at most {max_model_len - 1} for the prompt",
                field="prompt",
            )
        _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        self.sampling.validate(vocab_size)
        if self.sampling.min_tokens > self.max_tokens:
            raise InvalidArgument(
                f"{self.sampling.min_tokens} is more than max_tokens {self.max_tokens}", field="min_tokens"
            )
        limit = self.output_limit(max_model_len)
        if len(self.output_ids) >= limit:
            raise InvalidArgument(
                f"holds {len(self.output_ids)} tokens, nothing is left of the limit of {limit}",
                field="output_ids",
            )
        self.slo.validate()
        if self.timeout_s is not None:
            _check_number("timeout_s", self.timeout_s, -math.inf, math.inf)
        _check_number("waited_s", self.waited_s, 0.0, math.inf)

    def output_limit(self, max_model_len: int) -> int:
        """How many output tokens this request may have in all: its own limit or the context's."""
        return min(self.max_tokens, max_model_len - len(self.prompt_ids))


def check_token_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
    """Raise InvalidArgument if an id is no int or outside [0, vocab_size)."""
    for number, part in enumerate(slices(ids)):
        if not set(map(type, part)) <= {int}:  # exactly int: no bool or numpy integer survives the wire
            raise InvalidArgument("token ids must be integers", field=name)
        if part and (min(part) < 0 or max(part) >= vocab_size):
            place, bad = next((i, t) for i, t in enumerate(part) if not 0 <= t < vocab_size)
            raise InvalidArgument(
                f"token id {bad} at index {number * SLICE + place} is outside the vocabulary of {vocab_size}",
                field=name,
            )


def _check_number(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidArgument(f"must be a number, got {value!r}", field=name)
    if not -sys.float_info.max <= value <= sys.float_info.max:  # false for NaN; an int may be larger, too
        raise InvalidArgument("must be a finite number", field=name)
    if value < low or value > high or (open_low and value == low):
        least = f"greater than {low:g}" if open_low else f"at least {low:g}"
        most = "" if high == float("inf") else f" and at most {high:g}"
        raise InvalidArgument(f"must be {least}{most}, got {value}", field=name)


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"must be an integer, got {value!r}", field=name)
    if not low <= value <= high:
        raise InvalidArgument(f"must be in [{low}, {high}], got {value}", field=name)
