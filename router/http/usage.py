"""Usage and timings at the end of an answer."""

from __future__ import annotations

from typing import Any

from baton.proto.v1 import inference_pb2 as pb

TIMES = ("queue_s", "prefill_s", "transfer_s", "decode_s", "total_s", "ttft_s", "tpot_s")
NODES = ("transfer_bytes", "prefill_node", "decode_node", "retries", "preemptions")


class Usage:
    """Sums over all prompts of a call. drop_output: tokens that were made do not count."""

    def __init__(self, *, drop_output: bool = False) -> None:
        self._drop_output = drop_output
        self._prompt = self._output = self._cached = 0
        self._timings: pb.Timings | None = None

    def take(self, message: pb.GenerateResponse) -> None:
        """Of the last message of each prompt's stream; others tell nothing."""
        if message.HasField("usage"):
            self._prompt += message.usage.prompt_tokens
            self._cached += message.usage.cached_tokens
            if not self._drop_output:
                self._output += message.usage.completion_tokens
            self._timings = message.timings

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._output,
            "total_tokens": self._prompt + self._output,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def timings(self) -> dict[str, Any]:
        """Seconds; null: never happened. All but the nodes' names are as in gRPC's Timings."""
        timings = self._timings
        if timings is None:
            return {}
        unset = {name for name in ("ttft_s", "tpot_s") if not timings.HasField(name)}
        return {name: None if name in unset else getattr(timings, name) for name in (*TIMES, *NODES)}
