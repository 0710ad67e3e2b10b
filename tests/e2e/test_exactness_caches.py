"""Prefix caches, cold and warm, on either side: the same answers, isolated by salt, counted once."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.core.errors import Cancelled
from baton.core.prefix import chain, root_key
from baton.router.prefix_view import NodePrefixes, PromptChains
from baton.runtime.client.types import Completion
from tests.e2e.cluster import config, eventually
from tests.e2e.exact import QUIET, Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import PATIENCE_S, TRIES
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import Reference, prompt_of

NEW_TOKENS = 8
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("caches"))


@pytest.fixture(scope="module")
def family(model: tuple[Path, Reference]) -> list[Case]:
    """Prompts with a common beginning that is no whole number of blocks."""
    start = prompt_of(18, seed=7)
    return [solid_case(model[1], n, NEW_TOKENS, start) for n in (19, 20, 24, 25, 37)]


def caching(prefill: bool, decode: bool, **sections: Any) -> dict[str, Any]:
    def nodes(on: bool) -> dict[str, Any]:
        return {"engine": {"prefix_caching": on}}

    return QUIET | {"prefill_nodes": nodes(prefill), "decode_nodes": nodes(decode)} | sections


@pytest.mark.parametrize("way", ["shm", "tcp"])
@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True), (False, False)])
async def test_cold_and_warm_on_either_side(
    sides: tuple[bool, bool], way: str, model: tuple[Path, Reference], family: list[Case]
) -> None:
    """What decode has is not sent again; what only prefill has is sent, but not computed."""
    async with inprocess(config(model[0], **caching(*sides, transfer={"kinds": (way,)}))) as cluster:
        cold = [await exact(cluster, case) for case in family]
        warm = [await exact(cluster, case) for case in family]
        together = await all_exact(cluster, family)
        for case, first, second in zip(family, cold, warm, strict=True):
            sent = len(case.prompt) * cluster.nodes["prefill-0"].app._parts.loaded.kv_token_bytes
            known = (len(case.prompt) - 1) // 4 * 4
            assert second.usage.cached_tokens == (known if sides[0] else 0)
            if sides[1]:
                assert second.timings.transfer_bytes < sent
            else:
                assert first.timings.transfer_bytes == second.timings.transfer_bytes == sent
        assert any(answer.usage.cached_tokens for answer in together) == sides[0]
        await cluster.settled()


@pytest.mark.parametrize("warm", ["prefill-0", "decode-0"])
async def test_a_node_that_is_warm_beside_one_that_lost_its_memory(
    warm: str, model: tuple[Path, Reference], family: list[Case]
) -> None:
    """The other one is replaced by a new one, as after a restart."""
    settings = config(model[0], **QUIET)
    async with inprocess(settings) as cluster:
        await all_exact(cluster, family)
        other = "decode-0" if warm == "prefill-0" else "prefill-0"
        role = cluster.nodes[other].core.role
        await cluster.remove(other)
        await cluster.add(settings, role)
        await cluster.up(warm, other)
        for case in family:
            await exact(cluster, case)
        await cluster.settled()


# ---- isolation (PFX2) -------------------------------------------------------------------------------------


async def test_salts_share_nothing(model: tuple[Path, Reference]) -> None:
    """Any two different salts, however alike; the same one twice finds its blocks."""
    case = solid_case(model[1], 16, NEW_TOKENS)
    salts = ["", "x", "0", "00", "ab", "a", "b", "abc", "s" * 64 + "1", "s" * 64 + "2", "\u00e9", "e\u0301"]
    async with inprocess(config(model[0], **QUIET)) as cluster:
        first = [await exact(cluster, case, salt=salt) for salt in salts]
        second = [await exact(cluster, case, salt=salt) for salt in salts]
        sent = first[0].timings.transfer_bytes
        assert [answer.usage.cached_tokens for answer in first] == [0] * len(salts)
        assert [answer.usage.cached_tokens for answer in second] == [12] * len(salts)
        assert [answer.timings.transfer_bytes for answer in first] == [sent] * len(salts)
        assert all(answer.timings.transfer_bytes < sent for answer in second)
        assert (await exact(cluster, case)).usage.cached_tokens == 12  # none given is the empty one
        await cluster.settled()


# ---- figures (MET2) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
async def test_hits_are_counted_once(sides: tuple[bool, bool], model: tuple[Path, Reference]) -> None:
    """Ten times the same prompt: the request says what its prefill node found, not the sum over nodes."""
    case = solid_case(model[1], 17, NEW_TOKENS)
    async with inprocess(config(model[0], **caching(*sides))) as cluster:
        answers = [await exact(cluster, case) for _ in range(10)]
        await cluster.settled()
        expected = [0] + [16 if sides[0] else 0] * 9
        assert [answer.usage.cached_tokens for answer in answers] == expected
        prefill, decode = cluster.nodes["prefill-0"], cluster.nodes["decode-0"]
        assert prefill.metric(QUERIES) == 10 * len(case.prompt)
        assert prefill.metric(HITS) == sum(expected)
        assert decode.metric(QUERIES) == decode.metric(HITS) == 0  # it was asked for room, not for a prompt


async def test_no_hits_where_there_are_none(model: tuple[Path, Reference]) -> None:
    """Different prompts, more than the decode pool holds: requests wait and are preempted, and what they
    compute again is no hit."""
    cases = [solid_case(model[1], 9, 24, [3 + i]) for i in range(10)]
    small = {"engine": {"num_blocks": 20}}
    async with inprocess(config(model[0], **QUIET, decode_nodes=small)) as cluster:
        answers: list[Completion] = []
        for attempt in range(TRIES):  # some may be done before the next come
            answers += await all_exact(cluster, cases, salt=str(attempt))
            await cluster.settled()
            if sum(answer.timings.preemptions for answer in answers):
                break
        else:
            raise AssertionError("there was always room for all")
        assert [answer.usage.cached_tokens for answer in answers] == [0] * len(answers)
        nodes = cluster.nodes.values()
        assert sum(node.metric(HITS) for node in nodes) == 0
        assert sum(node.metric(QUERIES) for node in nodes) == sum(a.usage.prompt_tokens for a in answers)


# ---- pools that are too small to keep everything (PFX3) ---------------------------------------------------


async def test_nested_prefixes_in_a_tiny_pool(model: tuple[Path, Reference]) -> None:
    """Up to three at once over six prompts, some given up half-way, with every book checked all the time."""
    tree = prompt_of(40, seed=3)
    cases = []
    for length in (6, 11, 16, 23, 31, 40):
        case = Case.of(model[1], tree[:length], 4)
        assert case.want.margin > 1e-3
        cases.append(case)
    draw = random.Random(5)
    small = {"num_blocks": 12, "max_model_len": 44, "chunk_tokens": 8}
    async with inprocess(config(model[0], **QUIET, engine=small)) as cluster:
        slots = asyncio.Semaphore(3)

        async def one() -> int:
            async with slots:
                case = draw.choice(cases)
                if draw.random() < 0.2:
                    await _given_up(cluster, case, draw.random() * 0.02)
                    return 0
                answer = await exact(cluster, case)
                for node in cluster.nodes.values():
                    assert node.app._shell.load.blocks_free >= 0
                return answer.usage.cached_tokens

        hits = await asyncio.gather(*(one() for _ in range(200)))
        assert sum(hits) > 0
        await cluster.settled()
        for node in cluster.nodes.values():
            assert node.core.kv.available == 12
        _no_child_without_its_parent(cluster, tree)
        for i in range(100):
            prompt = prompt_of(20, seed=100 + i)
            assert (await cluster.client.generate(prompt, max_tokens=2)).usage.cached_tokens == 0
        await cluster.settled()


async def _given_up(cluster: InProcess, case: Case, after_s: float) -> None:
    async with cluster.client.stream(case.prompt, max_tokens=4, temperature=0.0) as stream:
        asyncio.get_running_loop().call_later(after_s, stream.cancel)
        try:
            async for _ in stream:
                pass
        except Cancelled:
            pass


def _no_child_without_its_parent(cluster: InProcess, tree: list[int]) -> None:
    for node in cluster.nodes.values():
        revision = node.app._parts.info.fingerprint.weights
        keys = chain(root_key(revision=revision), tree, node.core.kv.block_size)
        stored = set(node.core.kv.index.keys())
        found = [key in stored for key in keys]
        assert found == sorted(found, reverse=True)


# ---- the same keys everywhere (PFX1) ----------------------------------------------------------------------


def test_keys_do_not_depend_on_the_process() -> None:
    script = (
        "from baton.core.prefix import chain, root_key\n"
        "print([key.hex() for key in chain(root_key(salt='s', revision='r'), range(12), 4)])"
    )
    told = set()
    for seed in ("0", "1", None):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment |= {"PYTHONHASHSEED": seed} if seed else {}
        told.add(subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True).stdout)
    assert len(told) == 1
    here = [key.hex() for key in chain(root_key(salt="s", revision="r"), range(12), 4)]
    assert ast.literal_eval(told.pop().decode()) == here


async def test_the_router_knows_what_nodes_will_find(
    model: tuple[Path, Reference], family: list[Case]
) -> None:
    """Its prediction, made before the request is sent, is what the node then reports."""
    async with inprocess(config(model[0], **QUIET)) as cluster:
        hits = []
        for case in [*family, *family]:
            await eventually(lambda: _not_told_yet(cluster), PATIENCE_S)
            predicted = PromptChains(case.prompt, "").matched_tokens(_view(cluster, "prefill-0"))
            assert (await exact(cluster, case)).usage.cached_tokens == predicted
            hits.append(predicted)
        assert hits[0] == 0 < hits[-1]


def _view(cluster: InProcess, name: str) -> NodePrefixes:
    node = cluster.router.machine._state.node(name)
    assert node is not None
    return node.prefixes


async def _not_told_yet(cluster: InProcess) -> str:
    for name, node in cluster.nodes.items():
        if _view(cluster, name).stored != set(node.core.kv.index.keys()):
            return f"the router has an old view of {name}"
    return ""
