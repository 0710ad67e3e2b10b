"""Text to tokens and back for one model. Holds no state between calls; safe to use from several threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer

from baton.core.errors import InvalidArgument
from baton.router.text.chat import ROLES, ChatTemplate, Guard
from baton.router.text.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer
from baton.router.text.shield import ShieldedTokenizer, encoded
from baton.router.text.source import TokenizerSource
from baton.router.text.tables import byte_table, longest_token


class TextCodec:
    """bos_token_id: None where the model has none. eos_token_ids: ids that end a text. special_ids: control
    tokens, left out of the text by skip_special. vocab_size: ids known here (a model's may be padded
    beyond). longest_token: bytes of text that a token spells at most; None: not known."""

    def __init__(self, source: TokenizerSource) -> None:
        tokenizer = source.tokenizer
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.bos_token_id = source.bos_token_id
        self.eos_token_ids = source.eos_token_ids
        added = tokenizer.get_added_tokens_decoder()
        self._special_texts = {i: token.content for i, token in added.items() if token.special}
        self.special_ids = frozenset(self._special_texts)
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self._before, self._after = _affixes(tokenizer)
        self._set_bos(source.add_bos)
        self.longest_token = longest_token(tokenizer)
        self._source = source
        self._plain_table = byte_table(tokenizer)
        self._text_table = self._plain_table.without(self.special_ids) if self._plain_table else None

    def encode(self, text: str) -> list[int]:
        """Special-token text becomes control ids, and BOS is put before it if the tokenizer is set to do
        so."""
        return [*self._before, *encoded(self._tokenizer, text), *self._after]

    def encode_chat(self, messages: Sequence[tuple[str, str]], *, continue_final: bool = False) -> list[int]:
        """Token ids of (role, content) messages under the model's chat template.

        The template's text decides about BOS; where it writes none and the tokenizer is set to add one, one
        is put before it: never two. Special-token text inside a content is ordinary text. continue_final:
        leave the last message, which must be the assistant's, open, exactly as it stands (trailing spaces
        included). Raises InvalidArgument (field `chat`): no template, an unknown role, or the template's
        own refusal.
        """
        if not messages:
            raise InvalidArgument("holds no message", field="chat")
        unknown = next((role for role, _ in messages if role not in ROLES), None)
        if unknown is not None:
            raise InvalidArgument(f"unknown role {unknown!r}, known: {sorted(ROLES)}", field="chat")
        if continue_final and messages[-1][0] != "assistant":
            raise InvalidArgument(
                f"only an assistant message can be continued, the last is {messages[-1][0]!r}", field="chat"
            )
        ids = self._encode_rendered(self._rendered(messages, continue_final))
        bos = self.bos_token_id
        if bos is not None and bos in self._before and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids` as one piece: what a Detokenizer gives in all. No clean-up of spaces."""
        table = self._text_table if skip_special else self._plain_table
        if table is None:
            return self._decode_known(ids, skip_special)
        detokenizer = ByteDetokenizer(table, ())
        return detokenizer.push(ids) + detokenizer.flush()

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special: bool = True) -> Detokenizer:
        """Turns output tokens into the text that they add to `prompt_ids`."""
        table = self._text_table if skip_special else self._plain_table
        if table is None:
            return WindowDetokenizer(lambda ids: self._decode_known(ids, skip_special), prompt_ids)
        return ByteDetokenizer(table, prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, special ones included; b"" for an id that is not known here."""
        if self._plain_table is None:
            return self._decode_known([token_id], skip_special=False).encode()
        pieces = self._plain_table.pieces
        return pieces[token_id] or b"" if 0 <= token_id < len(pieces) else b""

    def _set_bos(self, add_bos: bool | None) -> None:
        bos = self.bos_token_id
        if add_bos is None or bos is None:
            return
        self._before = [i for i in self._before if i != bos]
        if add_bos:
            self._before.insert(0, bos)

    def _rendered(self, messages: Sequence[tuple[str, str]], continue_final: bool) -> str:
        guard = self._guard
        guarded = [(role, guard.protect(content)) for role, content in messages]
        if not continue_final:
            return self._template.render(guarded, add_generation_prompt=True)
        end = guard.mark(str(len(self._special_texts)))  # a number no special token has
        guarded[-1] = (guarded[-1][0], guarded[-1][1] + end)
        text, found, _ = self._template.render(guarded, add_generation_prompt=False).rpartition(end)
        if not found:
            raise InvalidArgument("the model's chat template cannot continue a message", field="chat")
        return text.replace(end, "")  # should the template write it more than once

    def _encode_rendered(self, rendered: str) -> list[int]:
        pieces = self._guard.split(rendered)
        if "".join(text + special for text, special in pieces) == rendered:
            return encoded(self._tokenizer, rendered)
        return self._shield.encode(pieces)

    def _decode_known(self, ids: Sequence[int], skip_special: bool) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    @cached_property
    def _guard(self) -> Guard:
        return Guard(list(self._special_texts.values()))

    @cached_property
    def _shield(self) -> ShieldedTokenizer:
        return ShieldedTokenizer(self._tokenizer)

    @cached_property
    def _template(self) -> ChatTemplate:
        if not self._source.chat_template:
            raise InvalidArgument("the model has no chat template", field="chat")
        return ChatTemplate(self._source.chat_template, self._source.named_tokens)


def _affixes(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer's own post-processor puts before and after a text."""
    bare: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    full: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    return [], []
