"""What a tokenizer is made of, whatever file it came from; and the slow way of reading any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from baton.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """add_bos: whether encoding a plain text puts BOS before it; None: as the tokenizer's own post-processor
    does. named_tokens: texts of special tokens by the names that chat templates use (bos_token, ...)."""

    tokenizer: Tokenizer
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    add_bos: bool | None = None
    chat_template: str | None = None
    named_tokens: Mapping[str, str] = field(default_factory=dict)


def through_transformers(folder: Path, gguf_file: str | None = None) -> Tokenizer:
    """Let transformers read or convert the tokenizer. Slow: imports transformers."""
    from transformers import AutoTokenizer

    try:
        kwargs = {"gguf_file": gguf_file} if gguf_file else {}
        wrapped = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **kwargs)
    except Exception as error:  # whatever a broken file makes it raise
        place = folder / gguf_file if gguf_file else folder
        raise InvalidArgument(f"cannot load a tokenizer from {place}: {error}", field="model") from error
    tokenizer = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise InvalidArgument(f"the tokenizer in {folder} has no fast form", field="model")
    return tokenizer
