"""Stop strings through the wire: nothing leaks, nothing is lost, ids and usage end with the text."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.request import Request
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import inference_pb2 as pb
from tests.fakes import Cluster, StubConfig, StubNode, router_with, spell

ALPHABET = "ABCDEFGHIJ"


def letters(request: Request) -> list[int]:
    return [*spell(ALPHABET), 2][: request.max_tokens]


async def ask(cluster: Cluster, **request: Any) -> tuple[str, list[int], pb.GenerateResponse]:
    text, ids, last = "", [], pb.GenerateResponse()
    async for last in cluster.inference.Generate(pb.GenerateRequest(text="x", **request), timeout=20):
        text += last.text
        ids += last.token_ids
    return text, ids, last


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3])
@pytest.mark.parametrize(
    ("stop", "include", "text", "matched", "tokens"),
    [
        (["DEFGHIJ"], False, "ABC", "DEFGHIJ", 10),
        (["DEFGHIX"], False, "ABCDEFGHIJ", None, 11),
        (["DEF", "DEFGH"], False, "ABC", "DEF", 6),
        (["DEF"], True, "ABCDEF", "DEF", 6),
        (["A"], False, "", "A", 1),
        (["IJK"], False, "ABCDEFGHIJ", None, 11),
    ],
)
async def test_stop_strings(
    tokens_per_step: int, stop: list[str], include: bool, text: str, matched: str | None, tokens: int
) -> None:
    node = StubNode(config=StubConfig(script=letters, tokens_per_step=tokens_per_step))
    async with router_with(node) as cluster:
        for tokens_only in (False, True):
            got, ids, last = await ask(
                cluster,
                stop=stop,
                include_stop=include,
                max_tokens=20,
                tokens_only=tokens_only,
                sampling=common.SamplingParams(logprobs=0),
            )
            assert got == ("" if tokens_only else text)
            assert ids == letters(Request("", (1,), max_tokens=20))[:tokens]
            assert last.usage.completion_tokens == tokens
            assert last.finish_reason == common.FINISH_REASON_STOP
            assert (last.stop_text if last.HasField("stop_text") else None) == matched
        await cluster.all_idle()


async def test_held_text_comes_out_at_the_length_limit() -> None:
    async with router_with(StubNode(config=StubConfig(script=letters))) as cluster:
        text, ids, last = await ask(cluster, stop=["DEFGHIJ"], max_tokens=6)
        assert (text, len(ids)) == ("ABCDEF", 6)
        assert last.finish_reason == common.FINISH_REASON_LENGTH


async def test_only_the_needed_suffix_is_held() -> None:
    async with router_with(StubNode(config=StubConfig(script=letters, step_s=0.02))) as cluster:
        deltas = [
            m.text
            async for m in cluster.inference.Generate(
                pb.GenerateRequest(text="x", stop=["FGX"], max_tokens=10)
            )
        ]
        assert "".join(deltas) == ALPHABET
        assert deltas[:5] == ["A", "B", "C", "D", "E"]


async def test_a_stop_string_across_a_character_of_several_bytes() -> None:
    script = StubConfig(script=lambda request: spell("ab\u00e9\u00e9cd")[: request.max_tokens])
    async with router_with(StubNode(config=script)) as cluster:
        text, ids, last = await ask(cluster, stop=["\u00e9c"], max_tokens=50)
        assert (text, last.stop_text) == ("ab\u00e9", "\u00e9c")
        assert ids == spell("ab\u00e9\u00e9c")


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_id_ends_the_answer_and_makes_no_text(include: bool) -> None:
    stop_id = spell("D")[0]
    script = StubConfig(script=lambda request: spell("ABCD"))
    async with router_with(StubNode(config=script)) as cluster:
        for stop in ([], ["never"]):
            text, ids, last = await ask(
                cluster,
                stop=stop,
                include_stop=include,
                max_tokens=50,
                sampling=common.SamplingParams(stop_token_ids=[stop_id]),
            )
            assert text == ("ABCD" if include else "ABC")
            assert ids == spell("ABCD")
            assert (last.stop_token_id, last.usage.completion_tokens) == (stop_id, 4)


@pytest.mark.parametrize("tokens_per_step", [1, 4])
async def test_stop_strings_do_not_count_before_min_tokens(tokens_per_step: int) -> None:
    script = StubConfig(script=lambda request: spell("ababababab"), tokens_per_step=tokens_per_step)
    async with router_with(StubNode(config=script)) as cluster:
        text, ids, last = await ask(
            cluster, stop=["ab"], max_tokens=50, sampling=common.SamplingParams(min_tokens=5)
        )
        assert (text, last.stop_text) == ("ababab", "ab")
        assert len(ids) == last.usage.completion_tokens == 8
