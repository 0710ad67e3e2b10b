"""The bodies of requests: OpenAI's fields, and those of vLLM's that clients send beside them.

Types are checked here, ranges where gRPC's are: in `router.prepare` and `core.request`. A field that is null
counts as left out. What would change the answer and is not supported is refused; what could not change it is
taken and ignored; what nobody knows is refused, as it may be a misspelt wish.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

# What the protocol's integers hold: larger ones are out of every field's range.
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Body(BaseModel):
    """Strict: "1" and true are no numbers."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(Body):
    include_usage: bool | None = None


class GenerateBody(Body):
    """What both kinds of requests have."""

    model: str | None = None
    n: Int64 | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    max_tokens: Int64 | None = None

    # vLLM's
    top_k: Int64 | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: Int64 | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Int64] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Int32 | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None

    # Baton's
    return_timings: bool | None = None

    # No effect on an answer.
    user: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class CompletionBody(GenerateBody):
    path: ClassVar[str] = "/v1/completions"

    prompt: Any = None  # see `prompts`
    best_of: Int64 | None = None
    echo: bool | None = None
    logprobs: Int64 | None = None
    suffix: str | None = None


class ChatBody(GenerateBody):
    path: ClassVar[str] = "/v1/chat/completions"

    messages: Any = None  # see `messages`
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    parallel_tool_calls: Any = None  # no effect without tools
