"""What a choice says, free of any API: the messages of a stream, one by one or all in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.batch import TokenLogprobs
from baton.core.request import FinishReason
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import inference_pb2 as pb
from baton.runtime import codec


@dataclass(slots=True)
class Part:
    """finish: set in the last one. stop: the stop string, or that one of the stop ids, that ended the choice;
    None for the model's own end, as for all others."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: str | int | None = None

    @property
    def size(self) -> int:
        """How much work it makes, roughly."""
        entries = (*self.logprobs[:1], *self.prompt_logprobs[:1])
        each = 1 + max((len(entry.top) for entry in entries), default=0)
        logprobs = (len(self.logprobs) + len(self.prompt_logprobs)) * each
        return len(self.text) // 8 + len(self.token_ids) + logprobs


class Parts:
    """Of one choice. stop_ids: those that the client named. drop_output_after: of the text, so many
    characters count, and none of the tokens; None: all counts."""

    def __init__(self, stop_ids: Sequence[int], drop_output_after: int | None = None) -> None:
        self._stop_ids = frozenset(stop_ids)
        self._left = drop_output_after

    def of(self, message: pb.GenerateResponse) -> Part:
        part = Part(
            text=message.text,
            prompt_logprobs=list(codec.logprobs_from_proto(message.prompt_logprobs)),
        )
        if message.finish_reason != common.FINISH_REASON_UNSPECIFIED:
            part.finish = codec.reason_from_proto(message.finish_reason)
        if self._left is not None:
            part.text = part.text[: self._left]
            self._left -= len(part.text)
            part.finish = FinishReason.LENGTH if part.finish is not None else None
            return part
        part.token_ids = list(message.token_ids)
        part.logprobs = list(codec.logprobs_from_proto(message.logprobs))
        if message.HasField("stop_text"):
            part.stop = message.stop_text
        elif message.HasField("stop_token_id") and message.stop_token_id in self._stop_ids:
            part.stop = message.stop_token_id
        return part


def joined(parts: Sequence[Part]) -> Part:
    """All of one choice as one."""
    last = parts[-1] if parts else Part()
    whole = Part("".join(part.text for part in parts), finish=last.finish, stop=last.stop)
    for part in parts:
        whole.token_ids += part.token_ids
        whole.logprobs += part.logprobs
        whole.prompt_logprobs += part.prompt_logprobs
    return whole
