"""Build a tokenizer from what a GGUF file says of it.

Byte-level BPE with a known pre-tokenizer is built here, in a fraction of a second. Everything else goes
through transformers' converter, which takes seconds and ignores the pre-tokenizer's name: hence the direct
way where the name says how digits and words are split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from baton.core.errors import InvalidArgument
from baton.engine.weights.gguf_meta import read_metadata
from baton.router.text.source import TokenizerSource, through_transformers

_CONTROL, _USER_DEFINED = 3, 4  # token types

_GPT2 = frozenset({"gpt-2", "gpt2", "default"})
_GPT2_SINGLE_DIGITS = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva"}
)
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"llama-bpe": _WORDS % "{1,3}", "llama3": _WORDS % "{1,3}", "llama-v3": _WORDS % "{1,3}"}
_SPLITS |= {"qwen2": _WORDS % "", "deepseek-r1-qwen": _WORDS % ""}


def load_gguf(path: Path) -> TokenizerSource:
    """Raises InvalidArgument (field `model`) if the file cannot be read or holds no tokenizer."""
    meta = read_metadata(path)
    tokens = meta.get("tokenizer.ggml.tokens")
    if not tokens:
        raise InvalidArgument(f"{path} holds no tokenizer", field="model")
    pre = meta.get("tokenizer.ggml.pre", "default")
    direct = meta.get("tokenizer.ggml.model") == "gpt2" and _pre_tokenizer(pre) is not None
    try:
        tokenizer = _byte_level_bpe(meta, pre) if direct else through_transformers(path.parent, path.name)
    except InvalidArgument:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise InvalidArgument(f"the tokenizer in {path} is broken: {error}", field="model") from error
    bos = meta.get("tokenizer.ggml.bos_token_id")
    ends = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    named = {
        f"{name}_token": tokens[i]
        for name in ("bos", "eos", "padding", "unknown")
        if isinstance(i := meta.get(f"tokenizer.ggml.{name}_token_id"), int) and i < len(tokens)
    }
    return TokenizerSource(
        tokenizer=tokenizer,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", meta.get("tokenizer.ggml.model") == "llama")),
        chat_template=meta.get("tokenizer.chat_template"),
        named_tokens=named,
    )


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer | None:
    if name in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _GPT2_SINGLE_DIGITS:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if name in _SPLITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[name]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return None


def _byte_level_bpe(meta: dict[str, Any], pre: str) -> Tokenizer:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta.get("tokenizer.ggml.merges", [])]
    vocab = {token: i for i, token in enumerate(tokens)}
    # With Llama 3's split a word that is in the vocabulary is taken whole, whatever the merges say.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.startswith("llama")))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    types = meta.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, types, strict=False):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    return tokenizer
