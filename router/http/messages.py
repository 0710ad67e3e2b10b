"""The `messages` of a chat: roles and texts. What a text model cannot read is refused with its place."""

from __future__ import annotations

from typing import Any

from baton.core.errors import InvalidArgument
from baton.proto.v1 import inference_pb2 as pb

REFUSED = ("tool_calls", "function_call", "audio")  # of a message; without them its meaning would be another


def chat_of(messages: Any, most: int) -> pb.Chat:
    """InvalidArgument names what is wrong: `messages[2].content[0].type`."""
    if not isinstance(messages, list):
        told = "is missing" if messages is None else "must be a list of messages"
        raise InvalidArgument(told, field="messages")
    if len(messages) > most:
        raise InvalidArgument(f"at most {most} allowed, got {len(messages)}", field="messages")
    return pb.Chat(messages=[_message(item, f"messages[{i}]") for i, item in enumerate(messages)])


def _message(item: Any, field: str) -> pb.ChatMessage:
    if not isinstance(item, dict):
        raise InvalidArgument("must be an object with role and content", field=field)
    role = item.get("role")
    if not isinstance(role, str):
        raise InvalidArgument("must be a text", field=f"{field}.role")
    for name in REFUSED:
        if item.get(name):
            raise InvalidArgument("is not supported", field=f"{field}.{name}")
    return pb.ChatMessage(role=role, content=_text(item.get("content"), f"{field}.content"))


def _text(content: Any, field: str) -> str:
    """Parts of type text are joined by line breaks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidArgument("must be a text, or a list of parts of type text", field=field)
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            raise InvalidArgument("must be an object with type and text", field=f"{field}[{i}]")
        if part.get("type") != "text":
            kind = part.get("type")
            told = f", not {kind[:64]!r}" if isinstance(kind, str) else ""
            raise InvalidArgument(f"only text is supported{told}", field=f"{field}[{i}].type")
        if not isinstance(part.get("text"), str):
            raise InvalidArgument("must be a text", field=f"{field}[{i}].text")
        texts.append(part["text"])
    return "\n".join(texts)
