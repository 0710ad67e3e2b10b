"""The text of one choice: TOK2 over real tokens, with the accounting of ids and logprobs."""

from __future__ import annotations

import time

import pytest

from baton.core.batch import TokenLogprobs
from baton.router.text import ChoiceText, Delta
from tests.router.text.codecs import SUBWORD, codec, raw


def teacher(name: str, text: str) -> list[int]:
    """One token per byte or letter where the vocabulary has it."""
    return [i for char in text for i in raw(name).encode("x" + char, add_special_tokens=False).ids[-1:]]


def logprobs_of(ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(i, -float(n)) for n, i in enumerate(ids)]


def run(choice: ChoiceText, ids: list[int], size: int) -> list[Delta]:
    deltas = []
    for at in range(0, len(ids), size):
        part = ids[at : at + size]
        deltas.append(choice.push(part, logprobs_of(ids)[at : at + size]))
        if deltas[-1].stop is not None:
            break
    return [*deltas, choice.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("name", SUBWORD)
@pytest.mark.parametrize(
    ("stops", "include", "text", "tokens", "stop"),
    [
        (["DEFGHIJ"], False, "ABC", 10, "DEFGHIJ"),
        (["DEFGHIX"], False, "ABCDEFGHIJ", 10, None),
        (["DEF", "DEFGH"], False, "ABC", 6, "DEF"),
        (["DEF", "DEFGH"], True, "ABCDEF", 6, "DEF"),
        (["A"], False, "", 1, "A"),
        ([], False, "ABCDEFGHIJ", 10, None),
    ],
)
def test_letters(
    name: str, size: int, stops: list[str], include: bool, text: str, tokens: int, stop: str | None
) -> None:
    ids = teacher(name, "ABCDEFGHIJ")
    assert len(ids) == 10
    prompt = codec(name).encode("x")
    choice = ChoiceText(codec(name).detokenizer(prompt), stops, include_stop=include)
    deltas = run(choice, ids, size)
    assert "".join(delta.text for delta in deltas) == text
    assert next((delta.stop for delta in deltas if delta.stop), None) == stop
    counted = [i for delta in deltas for i in delta.token_ids]
    assert counted == ids[:tokens]
    assert [entry for delta in deltas for entry in delta.logprobs] == logprobs_of(ids)[:tokens]
    assert choice.tokens == tokens


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", SUBWORD)
def test_a_stop_string_across_multi_byte_characters(name: str, size: int) -> None:
    """It completes with the very token that completes its last character."""
    text, stop = "ab🙂👩‍🚀한!c", "👩‍🚀한"
    ids = raw(name).encode(text, add_special_tokens=False).ids
    prefix = text[: text.index(stop)]
    needed = next(n for n in range(len(ids) + 1) if stop in codec(name).decode(ids[:n]))
    choice = ChoiceText(codec(name).detokenizer(), [stop])
    deltas = run(choice, ids, size)
    assert "".join(delta.text for delta in deltas) == prefix
    assert choice.tokens == needed < len(ids)


def test_tokens_without_text_count() -> None:
    ids = raw("model_t").encode("🙂🙂", add_special_tokens=False).ids
    choice = ChoiceText(codec("model_t").detokenizer())
    texts = [choice.push([i]).text for i in ids]
    assert texts == ["", "", "", "🙂"] * 2
    assert choice.tokens == 8


@pytest.mark.parametrize("stops", [[], ["DEFGHIJ"]])
def test_an_ending_token_counts_but_says_nothing(stops: list[str]) -> None:
    """EOS or a stop id inside a half-formed stop string: what was held comes out, the token's own text does
    not."""
    ids = teacher("model_t", "ABCDEF")
    choice = ChoiceText(codec("model_t").detokenizer((), skip_special=False), stops)
    delta = choice.push([*ids, 2], silent=1)
    assert delta.token_ids == [*ids, 2]
    assert delta.text + choice.finish().text == "ABCDEF"
    assert choice.tokens == 7


def test_half_a_character_at_the_end_is_said_once() -> None:
    ids = raw("model_t").encode("a🙂", add_special_tokens=False).ids[:-1]
    choice = ChoiceText(codec("model_t").detokenizer(), ["zz"])
    assert choice.push(ids).text == "a"
    assert choice.finish().text == "\ufffd"
    assert choice.finish() == Delta("", (), ())
    with pytest.raises(ValueError, match="after the end"):
        choice.push([5])


def test_a_deep_push_is_quick() -> None:
    """Constant work per token: the thousandth push costs what the first did."""
    one = codec("demo")
    ids = one.encode("The quick brown fox jumps over the lazy dog. 한국어 🙂 ") * 200
    choice = ChoiceText(one.detokenizer(ids), ["\n\nUser:"])
    best = min(_timed(choice, ids[at : at + 500]) for at in range(0, 3000, 500))
    assert best / 500 < 30e-6  # about 2 us on an idle machine


def _timed(choice: ChoiceText, ids: list[int]) -> float:
    start = time.process_time()
    for i in ids:
        choice.push((i,))
    return time.process_time() - start
