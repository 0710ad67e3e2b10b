"""The byte-level tokenizer of Model T: 3 specials, 256 byte tokens, 72 merges, 331 ids in all."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, IM_START_ID, EOS_ID = 0, 1, 2
MERGES = 72
VOCAB_SIZE = len(SPECIALS) + 256 + MERGES

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = """
the runner hands the baton to the next runner and the next runner carries it on to the line
one leg reads the whole prompt, the other leg writes the answer token by token
in the morning the sun is on the water and there is a wind that comes from the sea
what is the name of the thing that they are looking for, and where in the house is it
she said that he had been there before the rain, when all of the trees were still green
"""


def _learn_merges(count: int) -> list[tuple[str, str]]:
    """Plain byte-pair encoding over the corpus; ties go to the smaller pair, so the result never changes."""
    words = Counter(
        tuple(piece.replace(" ", "Ġ"))
        for line in _CORPUS.strip().splitlines()
        for piece in [line.split()[0], *(" " + word for word in line.split()[1:])]
    )
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    return merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return tuple(out)


def build_tokenizer() -> Tokenizer:
    merges = _learn_merges(MERGES)
    pieces = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    assert len(vocab) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


def write_tokenizer(directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers and Baton read them."""
    build_tokenizer().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS_ID],
        "eos_token": SPECIALS[EOS_ID],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
