"""KV of earlier turns, fetched by a node that lacks it from one that has it: the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.router.events import Dispatch, Effect, Event, Fetch
from baton.runtime.client.types import Completion
from tests.e2e.cluster import config
from tests.e2e.exact import QUIET, Case, exact, solid_case, tiny
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import Reference, prompt_of

NEW_TOKENS = 8
FETCHED, LENT = "baton_fetched_tokens_total", "baton_lent_tokens_total"
PATIENCE_S = 40.0
Model = tuple[Path, Reference]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("fetch"))


@contextmanager
def told(cluster: InProcess, fetch: Callable[[Dispatch], Fetch | None]) -> Iterator[None]:
    """Whatever the router thinks pays, what `fetch` says is fetched."""
    machine = cluster.router.machine
    step = machine.step

    def other(now: float, event: Event) -> list[Effect]:
        effects = step(now, event)
        return [replace(e, fetch=fetch(e)) if isinstance(e, Dispatch) else e for e in effects]

    machine.step = other  # type: ignore[method-assign]
    yield
    machine.step = step  # type: ignore[method-assign]


def always(node_id: str, tokens: int, patience_s: float = PATIENCE_S) -> Callable[[Dispatch], Fetch]:
    return lambda effect: Fetch(node_id, tokens, patience_s)


def asked(prompt: list[int], **more: Any) -> dict[str, Any]:
    options = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "logprobs": 0, "ignore_eos": True}
    return {"prompt": prompt, "timeout_s": 50, **options, **more}


async def two_turns(
    cluster: InProcess, first: list[int], fetch: Callable[[Dispatch], Fetch | None], **more: Any
) -> Completion:
    """The second one at a prefill node that has seen nothing."""
    async with cluster.only("prefill-0", "decode-0"):
        answer = await cluster.client.generate(**asked(first, **more))
    again = [*first, *answer.token_ids, *prompt_of(6, seed=3)]
    async with cluster.only("prefill-1", "decode-0"):
        with told(cluster, fetch):
            return await cluster.client.generate(**asked(again, **more))


@pytest.mark.parametrize("way", ["shm", "tcp"])
@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
async def test_a_second_turn_at_a_node_without_it(way: str, kv_dtype: str, model: Model) -> None:
    """48 of its 55 tokens have KV at the decode node, those of the first answer too. To the bit the same as
    when the node computes them itself."""
    folder, reference = model
    sections = QUIET | {"transfer": {"kinds": (way,)}, "prefill_nodes": {"engine": {"kv_dtype": kv_dtype}}}
    settings = config(folder, prefill=2, decode_nodes={"engine": {"kv_dtype": kv_dtype}}, **sections)
    first = solid_case(reference, 41, NEW_TOKENS).prompt
    async with inprocess(settings) as cluster:
        plain = await two_turns(cluster, first, lambda effect: None, salt="plain", temperature=1.0, seed=7)
        got = await two_turns(cluster, first, always("decode-0", 48), temperature=1.0, seed=7)
        asker, lender = cluster.nodes["prefill-1"], cluster.nodes["decode-0"]
        assert (plain.usage.cached_tokens, got.usage.cached_tokens) == (0, 48)
        assert asker.metric(FETCHED) == lender.metric(LENT) == 48
        assert got.token_ids == plain.token_ids
        assert [one.logprob for one in got.logprobs] == [one.logprob for one in plain.logprobs]
        await cluster.settled()


async def test_fetched_answers_are_the_references(model: Model) -> None:
    first = solid_case(model[1], 41, NEW_TOKENS)
    again = [*first.prompt, *first.want.token_ids, *prompt_of(6, seed=3)]
    second = Case.of(model[1], again, NEW_TOKENS)
    async with inprocess(config(model[0], prefill=2, **QUIET)) as cluster:
        async with cluster.only("prefill-0", "decode-0"):
            await exact(cluster, first)
        async with cluster.only("prefill-1", "decode-0"):
            with told(cluster, always("prefill-0", 40)):  # another prefill node's, which has the prompt alone
                got = await exact(cluster, second)
        assert got.usage.cached_tokens == 40
        assert cluster.nodes["prefill-0"].metric(LENT) == 40
        await cluster.settled()


@pytest.mark.parametrize(
    ("fetch", "of_lender"),
    [
        (Fetch("decode-0", 48, PATIENCE_S), {"kv_dtype": "bfloat16"}),
        (Fetch("decode-0", 48, PATIENCE_S), {"block_size": 8}),
        (Fetch("decode-0", 48, PATIENCE_S), {"prefix_caching": False}),
        (Fetch("decode-0", 48, 0.0), {}),
        (Fetch("decode-0", 5000, PATIENCE_S), {}),  # it gets what there is
        (Fetch("nobody", 48, PATIENCE_S), {}),
    ],
)
async def test_what_cannot_be_had_is_computed(fetch: Fetch, of_lender: dict[str, Any], model: Model) -> None:
    """KV that was rounded to another type is another node's, and is not taken; the rest costs time alone."""
    settings = config(model[0], prefill=2, decode_nodes={"engine": of_lender}, **QUIET)
    first = solid_case(model[1], 41, NEW_TOKENS).prompt
    async with inprocess(settings) as cluster:
        plain = await two_turns(cluster, first, lambda effect: None, salt="plain")
        begun_s = time.monotonic()
        got = await two_turns(cluster, first, lambda effect: fetch)
        assert time.monotonic() - begun_s < PATIENCE_S / 2
        assert got.token_ids == plain.token_ids
        if fetch.tokens == 48 and fetch.patience_s:
            assert got.usage.cached_tokens == 0
            assert cluster.nodes["prefill-1"].metric(FETCHED) == 0
        await cluster.settled()


async def test_another_tenants_kv_is_not_to_be_had(model: Model) -> None:
    first = solid_case(model[1], 41, NEW_TOKENS)
    async with inprocess(config(model[0], prefill=2, **QUIET)) as cluster:
        async with cluster.only("prefill-0", "decode-0"):
            await exact(cluster, first, salt="mine")
        async with cluster.only("prefill-1", "decode-0"):
            with told(cluster, always("decode-0", 40)):
                got = await exact(cluster, first, salt="yours")
        assert got.usage.cached_tokens == 0
        await cluster.settled()
