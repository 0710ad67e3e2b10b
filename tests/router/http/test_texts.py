"""Texts streamed and whole: nothing of a stop string leaks, nothing is held for ever, no character breaks."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from baton.bench.stub_node import Script
from baton.core.request import Request
from tests.fakes import StubConfig, StubNode, eventually, spell
from tests.router.http.kit import USER, Front, events, http_router

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
END = 2


async def said(front: Front, **asked: Any) -> tuple[str, str, dict[str, int], list[str]]:
    """Text, finish reason and usage, the same by both paths, streamed and whole; and a stream's pieces."""
    found, pieces = [], []
    for path, prompt in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": USER})):
        whole = (await front.post(path, asked | prompt)).json()
        choice = whole["choices"][0]
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        found.append((text, choice["finish_reason"], whole["usage"]["completion_tokens"]))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, done = events((await front.post(path, asked | prompt | options)).text)
        assert done == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        pieces = [c["text"] if path == TEXT else c["delta"].get("content", "") for c in choices]
        reasons = [c["finish_reason"] for c in choices if c["finish_reason"]]
        assert len(reasons) == 1
        found.append(("".join(pieces), reasons[0], last["usage"]["completion_tokens"]))
    assert len(set(found)) == 1, found
    text, reason, tokens = found[0]
    return text, reason, {"completion_tokens": tokens}, pieces


def says(text: str) -> Script:
    def script(request: Request) -> list[int]:
        return [*spell(text), END]

    return script


STOPS: list[tuple[str, dict[str, Any], str, str, int]] = [
    ("ABCDEFGHIJ", {"stop": "DEFGHIJ"}, "ABC", "stop", 10),
    ("ABCDEFGHIJ", {"stop": "DEFGHIX"}, "ABCDEFGHIJ", "stop", 11),
    ("ABCDEFGHIJ", {"stop": ["DEF", "DEFGH"]}, "ABC", "stop", 6),
    ("ABCDEFGHIJ", {"stop": "DEFGHIJ", "max_tokens": 6}, "ABCDEF", "length", 6),
    ("ABCDEF", {"stop": "DEFGHIJ"}, "ABCDEF", "stop", 7),
    ("ABCDEFGHIJ", {"stop": "DEF", "include_stop_str_in_output": True}, "ABCDEF", "stop", 6),
    ("ABCDEFGHIJ", {"stop": "DEF", "min_tokens": 4}, "ABCDEFGHIJ", "stop", 11),
    ("5 \u20ac and more", {"stop": "\u20ac a"}, "5 ", "stop", 7),
    ("5 \u20ac", {"max_tokens": 3}, "5 \ufffd", "length", 3),
    ("", {}, "", "stop", 1),
    ("A", {"max_tokens": 1}, "A", "length", 1),
]


@pytest.mark.parametrize("at_once", [1, 2, 6])
async def test_stop_strings_and_ends(at_once: int) -> None:
    config = StubConfig(tokens_per_step=at_once)
    async with http_router(StubNode(config=config)) as front:
        for text, asked, kept, reason, tokens in STOPS:
            config.script = says(text)
            found = await said(front, **{"max_tokens": 100} | asked)
            assert found[:3] == (kept, reason, {"completion_tokens": tokens}), (text, asked)
        await front.cluster.all_idle()


async def test_only_what_may_become_a_stop_string_is_held() -> None:
    async with http_router(StubNode(config=StubConfig(script=says("ABCDEFGHIJ")))) as front:
        *_, pieces = await said(front, stop="DEFGHIX", max_tokens=100)
        assert pieces[0] == "A"


async def test_characters_of_many_tokens_stay_whole() -> None:
    rng = random.Random(3)
    alphabet = "ab \u00e9\u20ac\ud55c\uae00\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467e\u0301\"'\n "
    config = StubConfig()
    async with http_router(StubNode(config=config)) as front:
        for _ in range(12):
            text = "".join(rng.choices(alphabet, k=rng.randint(1, 12)))
            config.script, config.tokens_per_step = says(text), rng.randint(1, 6)
            got, reason, usage, pieces = await said(front, max_tokens=200)
            assert (got, reason) == (text, "stop")
            assert usage["completion_tokens"] == len(spell(text)) + 1
            assert not any("\ufffd" in piece for piece in pieces)


async def test_special_text_in_a_prompt_and_raw_bytes_in_an_answer() -> None:
    def junk(request: Request) -> list[int]:
        return [*range(3, 259)]  # every byte there is

    async with http_router(StubNode(config=StubConfig(script=junk))) as front:
        whole = (await front.post(TEXT, {"prompt": "x", "max_tokens": 256})).json()
        assert whole["choices"][0]["text"] == bytes(range(256)).decode("utf-8", "replace")


async def test_one_short_choice_of_four_ends_alone_and_leaving_ends_the_others() -> None:
    def uneven(request: Request) -> list[int]:
        third = request.id.count("-") == 3 and request.id.endswith("-2")
        return [5] * (5 if third else 4000)

    node = StubNode(config=StubConfig(script=uneven, step_s=0.005))
    async with http_router(node) as front:
        asked = {"prompt": "x", "n": 4, "max_tokens": 4000, "stream": True, "ignore_eos": True}
        other = asyncio.ensure_future(front.post(TEXT, {"prompt": "y", "max_tokens": 150}))
        async with front.plain.stream("POST", TEXT, json=asked) as response:
            ended: set[int] = set()
            async for line in response.aiter_lines():
                for event in events(line):
                    ended |= {c["index"] for c in event["choices"] if c["finish_reason"]}
                if ended:
                    break
            assert ended == {2}
            await eventually(lambda: len(node.running) == 4)  # three of the four, and the other's
        assert (await other).json()["usage"]["completion_tokens"] == 150
        await front.cluster.all_idle(1.0)
