"""Text through the wire: whatever tokens come, in whatever pieces, the stream adds up to all their text.

The nodes are real, but their models are made to repeat the prompt: the k-th output token is the k-th prompt
token, and after those comes the end token. So a test chooses what is generated, and everything from the
hand-off to the client handles it as ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.core.batch import Batch, StepOutput
from baton.core.request import FinishReason
from baton.router.text.load import load_tokenizer
from baton.runtime.client.types import Completion, Delta
from tests.e2e.cluster import config
from tests.e2e.exact import QUIET
from tests.e2e.inprocess import InProcess, Node, inprocess
from tests.models import write_model
from tests.tokenizers_t import EOS_ID, IM_START_ID, build_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHOLE = [IM_START_ID]  # a prompt token in front, which is repeated too: special, so it makes no text


def repeats_prompt(node: Node) -> None:
    """From now on the node's model says the prompt again."""
    runner = node.app._parts.runner
    run = runner.run

    def repeat(batch: Batch) -> StepOutput:
        output = run(batch)
        rows = [
            replace(made, token_id=_script(row.history[: row.prompt_len], len(row.history) - row.prompt_len))
            if made.token_id is not None
            else made
            for row, made in zip(batch.rows, output.rows, strict=True)
        ]
        return replace(output, rows=tuple(rows))

    runner.run = repeat  # type: ignore[method-assign]


def _script(prompt: Sequence[int], position: int) -> int:
    return prompt[position] if position < len(prompt) else EOS_ID


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("text") / "T", num_hidden_layers=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(folder: Path) -> AsyncIterator[InProcess]:
    async with inprocess(config(folder, **QUIET, engine={"num_blocks": 2000})) as running:
        for node in running.nodes.values():
            repeats_prompt(node)
        yield running


async def said(cluster: InProcess, ids: list[int], **options: Any) -> tuple[list[Delta], Completion]:
    """`ids` generated, streamed and at once. In front of them a token that makes no text."""
    prompt = [*WHOLE, *ids]
    options = {"temperature": 0.0} | options
    stream = [delta async for delta in cluster.client.stream(prompt, **options)]
    whole = await cluster.client.generate(prompt, **options)
    assert "".join(delta.text for delta in stream) == whole.text
    assert tuple(i for delta in stream for i in delta.token_ids) == whole.token_ids
    assert stream[-1].usage is not None
    assert stream[-1].usage.completion_tokens == whole.usage.completion_tokens == len(whole.token_ids)
    return stream, whole


# ---- characters (TOK1) ------------------------------------------------------------------------------------

PIECES = (
    *("plain words ", "the ", "한국어 ", "가", "e\u0301", "n\u0303o", "\"'`", "«é»"),
    *("\U0001f600\U0001f389", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"),
    *("\n\n  x", "    .", " ,", "'s", "\t", " "),
)


def _random_text(draw: random.Random) -> str:
    return "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 9)))


async def test_random_texts_add_up(cluster: InProcess, folder: Path) -> None:
    """Also cut off anywhere: then, and only then, a character may be broken, and the one-shot text says the
    same. Some byte tokens make empty deltas, but all are counted."""
    raw, draw = build_tokenizer(), random.Random(1)
    tokenizer = load_tokenizer(str(folder))

    async def one(i: int) -> None:
        text = _random_text(draw)
        ids = raw.encode(text, add_special_tokens=False).ids
        cut = draw.randrange(1, len(ids) + 1) if i % 3 == 0 else len(ids)
        _, whole = await said(cluster, ids, max_tokens=cut + 1)
        assert list(whole.token_ids) == [*WHOLE, *ids[:cut]]
        assert whole.text == raw.decode(ids[:cut])
        assert whole.text == tokenizer.decode([*WHOLE, *ids[:cut]])
        if cut == len(ids):
            assert whole.text == text
        assert ("\ufffd" in whole.text) == ("\ufffd" in raw.decode(ids[:cut]))

    for start in range(0, 300, 20):
        await asyncio.gather(*(one(i) for i in range(start, start + 20)))
    await cluster.settled()


# ---- spaces (TOK4) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [" leading x", "a    b", "    .", " ,", " 's", "\n\n  x", " ", "x  ", "a , b"]
)
@pytest.mark.parametrize("skip", [True, False])
async def test_spaces_stay_as_they_are(cluster: InProcess, text: str, skip: bool) -> None:
    """Byte for byte: what prompt and output give together, without what the prompt gives."""
    raw = build_tokenizer()
    ids = raw.encode(text, add_special_tokens=False).ids
    _, whole = await said(cluster, ids, max_tokens=len(ids) + 1, skip_special_tokens=skip)
    prompt = [*WHOLE, *ids]
    together = raw.decode([*prompt, *whole.token_ids], skip_special_tokens=skip)
    before = raw.decode(prompt, skip_special_tokens=skip)
    assert before + whole.text == together
    assert whole.text.endswith(text)


# ---- stop strings (TOK2) ----------------------------------------------------------------------------------

LETTERS = "ABCDEFGHIJ"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("stops", "text", "kept"),
    [
        (["DEFGHIJ"], "ABC", "ABCDEFGHIJ"),
        (["DEFGHIX"], None, None),
        (["DEF", "DEFGH"], "ABC", "ABCDEF"),
        (["CD", "XYZ"], "AB", "ABCD"),
        (["A"], "", "A"),
        (["J"], "ABCDEFGHI", LETTERS),
        (["IJK"], None, None),
    ],
)
async def test_stop_strings(
    cluster: InProcess, stops: list[str], text: str | None, kept: str | None, include: bool
) -> None:
    """None: no stop string is completed, so all of the text comes, what was held back too."""
    ids = build_tokenizer().encode(LETTERS, add_special_tokens=False).ids
    _, whole = await said(cluster, ids, max_tokens=50, stop=stops, include_stop=include)
    if text is None:
        assert (whole.text, whole.choices[0].stop_text) == (LETTERS, None)
        assert whole.choices[0].stop_token_id == EOS_ID
    else:
        assert whole.text == (kept if include else text)
        assert whole.choices[0].stop_text in stops
        assert EOS_ID not in whole.token_ids
    assert whole.finish_reason is FinishReason.STOP
    await cluster.settled()


async def test_a_stop_string_half_formed_at_the_limit(cluster: InProcess) -> None:
    ids = build_tokenizer().encode(LETTERS, add_special_tokens=False).ids
    assert len(ids) == len(LETTERS)
    _, whole = await said(cluster, ids, max_tokens=1 + 6, stop=["DEFGHIJ"])
    assert (whole.text, whole.finish_reason) == ("ABCDEF", FinishReason.LENGTH)


async def test_a_stop_string_over_characters_of_many_bytes(cluster: InProcess) -> None:
    ids = build_tokenizer().encode("one 😀🎉 two", add_special_tokens=False).ids
    _, whole = await said(cluster, ids, max_tokens=50, stop=["🎉 t"])
    assert (whole.text, whole.choices[0].stop_text) == ("one 😀", "🎉 t")


async def test_only_what_may_become_a_stop_string_is_held_back(cluster: InProcess) -> None:
    """The first letters come long before the end."""
    ids = build_tokenizer().encode(LETTERS * 20, add_special_tokens=False).ids
    stream, whole = await said(cluster, ids, max_tokens=400, stop=["BCDX"])
    assert whole.text == LETTERS * 20
    seen = ""
    tokens = 0
    for delta in stream[:-1]:
        seen += delta.text
        tokens += len(delta.token_ids)
        assert len(seen) >= tokens - len(WHOLE) - len("BCD")
    assert len(stream) > 3


async def test_stop_strings_where_the_client_wants_no_text(cluster: InProcess) -> None:
    ids = build_tokenizer().encode(LETTERS, add_special_tokens=False).ids
    _, whole = await said(cluster, ids, max_tokens=50, stop=["DEF"], tokens_only=True)
    assert (whole.text, whole.choices[0].stop_text) == ("", "DEF")
    assert list(whole.token_ids) == [*WHOLE, *ids[:6]]
    assert whole.finish_reason is FinishReason.STOP
