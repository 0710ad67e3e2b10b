"""TOK1 and TOK4: the deltas of a stream are the text, byte for byte, however the tokens were grouped."""

from __future__ import annotations

import random

import pytest

from baton.router.text.detokenize import WindowDetokenizer
from tests.router.text.codecs import SUBWORD, codec, raw

PARTS = [
    *"abcxyz ABC .,!?'\"",
    "  ",
    "    ",
    "\n\n",
    "\t",
    "the ",
    "한국어",
    "가각",
    "🙂🙃",
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "e\u0301",
    "n\u0303\u0323",
    "é",
    "\u00ff'\"",
    "中文",
    "\u202eabc",
    "𝔘𝔫𝔦",
    "\u0000",
]
SPACES = [" leading x", "a    b", "    .", " ,", " 's", "\n\n  x", " ", "x ", "  ", "a . b ,c"]


def random_text(dice: random.Random) -> str:
    return "".join(dice.choice(PARTS) for _ in range(dice.randint(1, 25)))


def streamed(name: str, prompt: list[int], output: list[int], chunks: list[int], skip: bool) -> list[str]:
    """Deltas of `output` pushed in groups of the given sizes (cycled), flush included."""
    detokenizer = codec(name).detokenizer(prompt, skip)
    deltas, at, turn = [], 0, 0
    while at < len(output):
        size = chunks[turn % len(chunks)]
        deltas.append(detokenizer.push(output[at : at + size]))
        at, turn = at + size, turn + 1
    return [*deltas, detokenizer.flush()]


@pytest.mark.parametrize("name", SUBWORD)
def test_300_random_strings_in_random_chunks(name: str) -> None:
    dice = random.Random(1)
    for _ in range(300):
        text = random_text(dice)
        ids = codec(name).encode(text)
        chunks = [dice.randint(1, 6) for _ in range(5)]
        whole = raw(name).decode(ids, skip_special_tokens=True)
        deltas = streamed(name, [], ids, chunks, True)
        assert "".join(deltas) == whole == codec(name).decode(ids)
        assert "\ufffd" not in whole
        seen = ""
        for delta in deltas:  # nothing to be taken back, at any point
            seen += delta
            assert whole.startswith(seen)


@pytest.mark.parametrize("name", SUBWORD)
def test_a_prompt_and_an_output_cut_anywhere(name: str) -> None:
    """The split may fall inside a character: then the delta that finishes it holds all of it."""
    dice = random.Random(2)
    for _ in range(150):
        ids = codec(name).encode(random_text(dice))
        cut = dice.randint(0, len(ids))
        whole, prompt = codec(name).decode(ids), codec(name).decode(ids[:cut])
        joined = "".join(streamed(name, ids[:cut], ids[cut:], [dice.randint(1, 4)], True))
        assert prompt.rstrip("\ufffd") + joined == whole


@pytest.mark.parametrize("name", ["demo", "model_t"])
def test_random_ids_of_a_byte_level_vocabulary(name: str) -> None:
    """Ill-formed UTF-8 of every sort, special tokens, padding ids: still what the one-shot decode says."""
    dice = random.Random(3)
    one = codec(name)
    byte_ids = [i for i in range(one.vocab_size) if len(raw(name).id_to_token(i) or "xx") == 1]
    for _ in range(600):
        pool = byte_ids if dice.random() < 0.7 else range(one.vocab_size + 3)
        ids = [dice.choice(pool) for _ in range(dice.randint(1, 14))]
        if dice.random() < 0.3:
            ids.insert(dice.randint(0, len(ids)), dice.choice(sorted(one.special_ids)))
        for skip in (True, False):
            whole = raw(name).decode(ids, skip_special_tokens=skip)
            assert one.decode(ids, skip) == whole
            assert "".join(streamed(name, [], ids, [1, 3, 2], skip)) == whole


@pytest.mark.parametrize("name", ["llama", "gemma", "metaspace", "metaspace_never"])
def test_random_ids_of_a_byte_fallback_vocabulary(name: str) -> None:
    dice = random.Random(4)
    one = codec(name)
    for _ in range(600):
        ids = [dice.randrange(one.vocab_size + 2) for _ in range(dice.randint(1, 14))]
        cut = dice.randint(0, len(ids))
        for skip in (True, False):
            whole = one.decode(ids, skip)
            assert "".join(streamed(name, [], ids, [2, 1], skip)) == whole
            seen = one.detokenizer((), skip).push(ids[:cut])
            assert seen + "".join(streamed(name, ids[:cut], ids[cut:], [1], skip)) == whole
            if "\ufffd" not in raw(name).decode(ids, skip_special_tokens=skip):
                assert whole == raw(name).decode(ids, skip_special_tokens=skip)


def test_ill_formed_bytes_cost_only_themselves() -> None:
    """`tokenizers` gives up a whole run of byte tokens for one bad byte; SentencePiece and Baton do not."""
    one = codec("llama")
    byte = {b: 3 + b for b in range(256)}
    ids = [byte[0xE4], byte[0xBD], byte[0xA0], byte[0xFF], byte[0xE4], byte[0xBD]]
    assert one.decode(ids) == "你\ufffd\ufffd\ufffd"
    assert raw("llama").decode(ids) == "\ufffd" * 6
    assert streamed("llama", [], ids, [1], True) == ["", "", "你", "\ufffd", "", "", "\ufffd\ufffd"]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SUBWORD)
def test_spaces(name: str, chunk: int, skip: bool) -> None:
    """TOK4: after no prompt, after BOS alone, after a prompt, after one that ends in spaces, after a
    special."""
    one = codec(name)
    special = min(one.special_ids)
    starts = [[], [special], one.encode("a"), one.encode("a "), one.encode("a  "), one.encode(" ")]
    starts += [[*one.encode("a"), special], [special, *one.encode(" ")]]
    for text in SPACES:
        bare = raw(name).encode(text, add_special_tokens=False).ids
        for prompt in starts:
            for output in (bare, [special, *bare], [*bare, special, *bare]):
                whole = raw(name).decode([*prompt, *output], skip_special_tokens=skip)
                before = raw(name).decode(prompt, skip_special_tokens=skip)
                assert whole.startswith(before)
                joined = "".join(streamed(name, prompt, output, [chunk], skip))
                assert joined == whole[len(before) :]


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("skip", [True, False])
def test_a_decoder_of_an_unknown_kind(chunk: int, skip: bool) -> None:
    dice = random.Random(5)
    one = codec("wordpiece")
    assert "Window" in type(one.detokenizer()).__name__
    for _ in range(200):
        ids = [dice.randrange(one.vocab_size) for _ in range(dice.randint(1, 40))]
        cut = dice.randint(0, len(ids))
        whole = raw("wordpiece").decode(ids, skip_special_tokens=skip)
        before = raw("wordpiece").decode(ids[:cut], skip_special_tokens=skip)
        assert before + "".join(streamed("wordpiece", ids[:cut], ids[cut:], [chunk], skip)) == whole


def test_the_window_handles_split_characters() -> None:
    """The fallback over a byte-level decoder gives what the table gives."""
    dice = random.Random(6)
    for name in ("model_t", "llama"):
        for _ in range(60):
            ids = codec(name).encode(random_text(dice))
            window = WindowDetokenizer(lambda ids, name=name: raw(name).decode(list(ids)), ())
            deltas = [window.push([i]) for i in ids] + [window.flush()]
            assert "".join(deltas) == codec(name).decode(ids)
