"""A seed gives one text: alone or among others, on whichever nodes, after a preemption. And logprobs, which
the first token's node and the others' node report alike."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from google.protobuf.json_format import MessageToJson

from baton.core.batch import TokenLogprobs
from baton.core.errors import InvalidArgument
from baton.core.request import MAX_SEED
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1.inference_pb2_grpc import InferenceStub
from baton.runtime.client import convert
from baton.runtime.client.types import Completion, Options
from baton.runtime.grpc_channel import channel
from tests.e2e.cluster import config
from tests.e2e.exact import LOGPROB_TOLERANCE, QUIET, Case, exact, solid_case, tiny
from tests.e2e.faults import TRIES
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import Reference, prompt_of
from tests.tokenizers_t import VOCAB_SIZE

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDED: dict[str, Any] = {"seed": 42, "temperature": 0.9, "max_tokens": 16, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("sampled"))


@pytest.fixture(scope="module")
def case(model: tuple[Path, Reference]) -> Case:
    return solid_case(model[1], 17, 6)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model: tuple[Path, Reference]) -> AsyncIterator[InProcess]:
    async with inprocess(config(model[0], prefill=2, decode=2, **QUIET)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(cluster: InProcess, case: Case) -> Completion:
    answer = await cluster.client.generate(case.prompt, **SEEDED)
    assert len(set(answer.token_ids)) > 8
    return answer


def _neighbour(draw: random.Random) -> dict[str, Any]:
    return {
        "temperature": draw.choice((0.0, 0.7, 1.3)),
        "top_k": draw.choice((0, 5)),
        "top_p": draw.choice((1.0, 0.8)),
        "frequency_penalty": draw.choice((0.0, 1.0)),
        "max_tokens": draw.randrange(1, 24),
    }


@pytest.mark.parametrize("neighbours", [1, 3, 7])
async def test_the_same_among_neighbours(
    cluster: InProcess, case: Case, alone: Completion, neighbours: int
) -> None:
    """They come at any moment, unseeded, so the request is now here, now there in the batch."""
    draw = random.Random(neighbours)

    async def later(prompt: list[int], options: dict[str, Any]) -> Completion:
        await asyncio.sleep(draw.random() * 0.03)
        return await cluster.client.generate(prompt, **options)

    for _ in range(3):
        others = [later(prompt_of(draw.randrange(1, 30)), _neighbour(draw)) for _ in range(neighbours)]
        answer, *_ = await asyncio.gather(later(case.prompt, SEEDED), *others)
        assert answer.token_ids == alone.token_ids
    await cluster.settled()


async def test_the_same_on_every_pair_of_nodes(cluster: InProcess, case: Case, alone: Completion) -> None:
    for prefill in ("prefill-0", "prefill-1"):
        for decode in ("decode-0", "decode-1"):
            async with cluster.only(prefill, decode):
                answer = await cluster.client.generate(case.prompt, salt=prefill + decode, **SEEDED)
            assert (answer.timings.prefill_node, answer.timings.decode_node) == (prefill, decode)
            assert answer.token_ids == alone.token_ids


async def test_the_same_on_a_node_of_both_roles_and_after_a_preemption(
    model: tuple[Path, Reference], case: Case, alone: Completion
) -> None:
    """The pool holds two such requests at their ends, but there are six."""
    small = {"engine": {"num_blocks": 20}}
    async with inprocess(config(model[0], prefill=0, decode=0, both=1, **QUIET)) as cluster:
        assert (await cluster.client.generate(case.prompt, **SEEDED)).token_ids == alone.token_ids
    async with inprocess(config(model[0], decode_nodes=small, **QUIET)) as cluster:
        for attempt in range(TRIES):  # some may be done before the next come
            answers = await asyncio.gather(
                *(cluster.client.generate(case.prompt, salt=f"{attempt} {i}", **SEEDED) for i in range(6))
            )
            assert {answer.token_ids for answer in answers} == {alone.token_ids}
            if sum(answer.timings.preemptions for answer in answers):
                break
        else:
            raise AssertionError("there was always room for all")
        await cluster.settled()


async def test_no_seed_is_another_one_each_time(cluster: InProcess, case: Case) -> None:
    free = {"temperature": 0.9, "max_tokens": 20, "ignore_eos": True}
    texts = {(await cluster.client.generate(case.prompt, **free)).token_ids for _ in range(3)}
    texts |= {(await cluster.client.generate(case.prompt, seed=-1, **free)).token_ids for _ in range(3)}
    assert len(texts) == 6


async def test_every_seed_there_is(cluster: InProcess, case: Case) -> None:
    for seed in (0, 1, MAX_SEED):
        options = SEEDED | {"seed": seed}
        answers = [await cluster.client.generate(case.prompt, **options) for _ in range(2)]
        assert answers[0].token_ids == answers[1].token_ids
    with pytest.raises(InvalidArgument, match="seed"):
        await cluster.client.generate(case.prompt, **SEEDED | {"seed": -2})


async def test_choices_are_seeds_in_a_row(cluster: InProcess, case: Case) -> None:
    answer = await cluster.client.generate(case.prompt, n=3, **SEEDED)
    single = [
        await cluster.client.generate(case.prompt, **SEEDED | {"seed": SEEDED["seed"] + i}) for i in range(3)
    ]
    assert [choice.token_ids for choice in answer.choices] == [one.token_ids for one in single]
    assert answer.usage.completion_tokens == 48
    assert answer.usage.prompt_tokens == len(case.prompt)


# ---- logprobs ---------------------------------------------------------------------------------------------


def _is_of(one: TokenLogprobs, row: torch.Tensor, token_id: int, count: int) -> None:
    """row: the dense model's logprobs. The asked number of best ones, best first, and all finite."""
    assert one.token_id == token_id
    assert one.logprob == pytest.approx(float(row[token_id]), abs=LOGPROB_TOLERANCE)
    assert len(one.top) == count
    for place, (other, logprob) in enumerate(one.top):
        assert logprob == pytest.approx(float(row[other]), abs=LOGPROB_TOLERANCE)
        assert logprob == pytest.approx(float(row.topk(count).values[place]), abs=LOGPROB_TOLERANCE)
        assert math.isfinite(logprob)


@pytest.mark.parametrize("count", [0, 1, 5, VOCAB_SIZE])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.5, "seed": 1, "logit_bias": dict.fromkeys(range(50, 55), -100.0)},
    ],
)
async def test_logprobs_across_the_split(
    cluster: InProcess, model: tuple[Path, Reference], case: Case, count: int, sampling: dict[str, Any]
) -> None:
    """One entry per token, the first token's too; of the model's own distribution, before any edit."""
    options = {"max_tokens": 6, "logprobs": count, "ignore_eos": True} | sampling
    deltas = [delta async for delta in cluster.client.stream(case.prompt, **options)]
    whole = await cluster.client.generate(case.prompt, **options)
    streamed = tuple(one for delta in deltas for one in delta.logprobs)
    assert [one.token_id for one in streamed] == [one.token_id for one in whole.logprobs]
    assert [one.logprob for one in streamed] == pytest.approx(
        [one.logprob for one in whole.logprobs], abs=1e-4
    )
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    rows = model[1].logprobs([*case.prompt, *whole.token_ids])[len(case.prompt) - 1 :]
    assert len(whole.logprobs) == 6
    for one, row, token_id in zip(whole.logprobs, rows, whole.token_ids, strict=False):
        _is_of(one, row, token_id, count)


@pytest.mark.parametrize("count", [0, 2])
async def test_prompt_logprobs(
    cluster: InProcess, model: tuple[Path, Reference], case: Case, count: int
) -> None:
    """For every prompt token but the first, in the first message only; a warm cache leaves none out."""
    rows = model[1].logprobs(case.prompt)
    for _ in range(2):
        options = {"max_tokens": 3, "temperature": 0.0, "prompt_logprobs": count, "logprobs": 1, "echo": True}
        deltas = [delta async for delta in cluster.client.stream(case.prompt, **options)]
        assert not any(delta.prompt_logprobs for delta in deltas[1:])
        got = deltas[0].prompt_logprobs
        assert len(got) == len(case.prompt) - 1
        for one, row, token_id in zip(got, rows, case.prompt[1:], strict=False):
            _is_of(one, row, token_id, count)
        await exact(cluster, case)  # which leaves the prompt's blocks behind


async def test_replies_are_strict_json(cluster: InProcess, case: Case) -> None:
    """With most of the vocabulary banned, no NaN or infinity reaches a client."""
    bias = dict.fromkeys(range(10, VOCAB_SIZE), -100.0)
    options = Options(max_tokens=4, logprobs=VOCAB_SIZE, prompt_logprobs=1, logit_bias=bias, temperature=0.0)
    request: pb.GenerateRequest = convert.request(case.prompt, options, "")
    async with channel(cluster.endpoint) as connection:
        replies = [MessageToJson(message) async for message in InferenceStub(connection).Generate(request)]
    assert len(replies) > 1

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} in a reply")

    for reply in replies:
        assert "NaN" not in json.dumps(json.loads(reply, parse_constant=refuse))
        assert "Infinity" not in reply
