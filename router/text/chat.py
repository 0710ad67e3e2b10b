"""Render a chat with the model's own template, keeping what the client wrote apart from what the template
wrote.

The guarantee: text of a special token in a message's content never becomes that token. Before rendering, each
such text is replaced by a placeholder that no client can guess; after rendering, what still reads as a
special token was therefore written by the template. The placeholders then turn back into the client's text.
Where content touches template text, an empty placeholder keeps the two from forming a special token
together. Roles need no such care, and could not have it (templates build tokens like <|user|> from them):
they are a fixed set.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.core.errors import InvalidArgument

# Noncharacters: no template has a use for them, and no case mapping or trimming touches them or digits.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


class _Generation(Extension):
    """{% generation %}...{% endgeneration %} marks the assistant's part for training; here it is plain
    text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        """named_tokens: bos_token and the like, as templates refer to them. Raises InvalidArgument
        (`chat`)."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InvalidArgument(f"the model's chat template is broken: {error}", field="chat") from error
        self._named = dict(named_tokens)

    def render(self, messages: Sequence[tuple[str, str]], add_generation_prompt: bool) -> str:
        """Raises InvalidArgument (field `chat`) with the template's own words if it refuses the messages."""
        try:
            return self._template.render(
                messages=[{"role": role, "content": content} for role, content in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._named,
            )
        except Exception as error:  # a template is code: it may raise anything
            raise InvalidArgument(f"the model's chat template refused it: {error}", field="chat") from error


class Guard:
    """Replaces special-token texts in client input, and puts them back later."""

    def __init__(self, specials: Sequence[str]) -> None:
        self._texts = [text for text in specials if text]
        longest_first = sorted(self._texts, key=lambda text: -len(text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if self._texts else None
        self._nonce = f"{_OPEN}{secrets.randbelow(10**18)}"
        self._marks = re.compile(f"{self._nonce}-([0-9]*){_CLOSE}")
        self._number = {text: i for i, text in enumerate(self._texts)}
        self._heads = tuple({text[:k] for text in self._texts for k in range(1, len(text))})
        self._tails = tuple({text[k:] for text in self._texts for k in range(1, len(text))})

    def mark(self, label: str) -> str:
        """A placeholder; with the empty label it stands for nothing."""
        return f"{self._nonce}-{label}{_CLOSE}"

    def protect(self, text: str) -> str:
        """`text` with placeholders where needed; usually unchanged."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self.mark(str(self._number[found[0]])), text)
        bare, around = text.strip(), self.mark("")
        outside = bare != text and self._touchy(text)
        if self._touchy(bare):  # a template may trim: so inside the outer white space
            start = text.find(bare)
            text = text[:start] + around + bare + around + text[start + len(bare) :]
        return around + text + around if outside else text

    def restore(self, text: str) -> str:
        texts = self._texts
        return self._marks.sub(lambda mark: texts[int(mark[1])] if mark[1] else "", text)

    def split(self, rendered: str) -> list[tuple[str, str]]:
        """(text, special) pieces in order: client and template text with the placeholders gone, each
        followed by a special token that the template wrote ("" after the last)."""
        pieces, at = [], 0
        for found in self._pattern.finditer(rendered) if self._pattern is not None else ():
            pieces.append((self.restore(rendered[at : found.start()]), found[0]))
            at = found.end()
        return [*pieces, (self.restore(rendered[at:]), "")]

    def _touchy(self, text: str) -> bool:
        """Whether `text` could be a part of a special token that template text around it completes."""
        if not text:
            return False
        return (
            text.startswith(self._tails)
            or text.endswith(self._heads)
            or any(text in special for special in self._texts)
        )
