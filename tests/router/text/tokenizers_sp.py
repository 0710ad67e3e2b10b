"""Tokenizers of other kinds, small: SentencePiece-style with byte fallback, Metaspace, WordPiece."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

BOS, EOS = "<s>", "</s>"
_WORDS = [
    "▁the",
    "▁a",
    "he",
    "ll",
    "o",
    "▁x",
    "th",
    "▁▁",
    "▁▁▁▁",
    "가",
    "한",
    "é",
    "s",
    "▁",
    ".",
    ",",
    "'",
    '"',
]
_LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("ABCDEFGHIJ0123456789!?\n-")


def _vocab() -> dict[str, int]:
    tokens = ["<unk>", BOS, EOS, *(f"<0x{b:02X}>" for b in range(256)), *_WORDS, *_LETTERS]
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def _merges(vocab: dict[str, int]) -> list[tuple[str, str]]:
    return [
        (word[:k], word[k:])
        for word in sorted(vocab, key=len)
        if 1 < len(word) < 6
        for k in range(1, len(word))
        if word[:k] in vocab and word[k:] in vocab
    ]


def _base() -> Tokenizer:
    vocab = _vocab()
    model = models.BPE(
        vocab=vocab, merges=_merges(vocab), unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", BOS, EOS)])
    return tokenizer


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    bos = (BOS, tokenizer.token_to_id(BOS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[bos]
    )
    return tokenizer


def llama_like() -> Tokenizer:
    """Prefix space, byte fallback, one leading space stripped: how Llama 2's file has it."""
    tokenizer = _base()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return with_bos(tokenizer)


def gemma_like() -> Tokenizer:
    """The same without any prefix space."""
    tokenizer = _base()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_bos(tokenizer)


def metaspace(scheme: str = "first") -> Tokenizer:
    tokenizer = _base()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """A model that would pick a special token out of plain text, were its vocabulary not hidden from it."""
    vocab = [(token, 0.0 if token in (BOS, EOS) else -5.0 - i / 100) for i, token in enumerate(_vocab())]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", BOS, EOS)])
    return tokenizer


def wordpiece() -> Tokenizer:
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "the",
        "run",
        "##ner",
        "##s",
        "hand",
        "baton",
        ".",
        ",",
        "'",
        "a",
        "é",
    ]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return tokenizer
