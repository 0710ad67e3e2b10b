"""Where an answer ends: with its first token, at an end token, a stop string, a limit; and what odd sampling
parameters do. The first token is made on one node and the rest on another, and neither may miss an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.core.errors import InvalidArgument
from baton.core.request import FinishReason
from baton.router.text.load import load_tokenizer
from baton.runtime.client.types import Completion, Delta
from tests.e2e.cluster import config
from tests.e2e.exact import QUIET, Case, exact, solid_case, tiny
from tests.e2e.inprocess import InProcess, inprocess
from tests.models import Reference, prompt_of
from tests.tokenizers_t import BOS_ID, EOS_ID, VOCAB_SIZE

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEW_TOKENS = 6
LIMIT = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("ends"))


@pytest.fixture(scope="module")
def case(model: tuple[Path, Reference]) -> Case:
    """Its first tokens are all different and none is an end token, so that each can serve as one."""
    folder, reference = model
    tokenizer = load_tokenizer(str(folder))
    words = tokenizer.encode("the runner hands the baton")  # ends with whole characters
    for seed in range(200):
        prompt = [*prompt_of(4, seed), *words]
        first = reference.greedy(prompt, 3).token_ids
        if len({*first, BOS_ID, EOS_ID}) == 5 and all(_readable(tokenizer.decode([i])) for i in first):
            found = Case.of(reference, prompt, NEW_TOKENS)
            if found.solid(reference):
                return found
    raise AssertionError("no prompt whose continuation is fit")


def _readable(text: str) -> bool:
    return text.isascii() and text.isprintable()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model: tuple[Path, Reference]) -> AsyncIterator[InProcess]:
    async with inprocess(config(model[0], **QUIET, engine={"max_model_len": LIMIT * 4})) as running:
        yield running


async def both_ways(cluster: InProcess, prompt: list[int], **options: Any) -> Completion:
    """Streamed and at once; the same, and nothing is left anywhere."""
    options = {"temperature": 0.0, "timeout_s": 30} | options
    deltas: list[Delta] = [delta async for delta in cluster.client.stream(prompt, **options)]
    whole = await cluster.client.generate(prompt, **options)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(i for delta in deltas for i in delta.token_ids) == whole.token_ids
    assert [d.finish_reason for d in deltas if d.finish_reason] == [whole.finish_reason]
    last = deltas[-1]
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens == len(whole.token_ids)
    await cluster.settled()
    return whole


async def test_one_token_never_reaches_decode(cluster: InProcess, case: Case) -> None:
    before = cluster.nodes["decode-0"].steps
    got = await both_ways(cluster, case.prompt, max_tokens=1)
    assert list(got.token_ids) == case.want.token_ids[:1]
    assert got.finish_reason is FinishReason.LENGTH
    assert cluster.nodes["decode-0"].steps == before


async def test_two_tokens(cluster: InProcess, case: Case) -> None:
    before = cluster.nodes["decode-0"].steps
    got = await both_ways(cluster, case.prompt, max_tokens=2)
    assert list(got.token_ids) == case.want.token_ids[:2]
    assert got.finish_reason is FinishReason.LENGTH
    assert cluster.nodes["decode-0"].steps > before


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_stop_id_ends_it_wherever_it_comes(cluster: InProcess, case: Case, at: int) -> None:
    stop = case.want.token_ids[at]
    got = await both_ways(cluster, case.prompt, max_tokens=NEW_TOKENS, stop_token_ids=[stop])
    assert list(got.token_ids) == case.want.token_ids[: at + 1]
    assert (got.finish_reason, got.choices[0].stop_token_id) == (FinishReason.STOP, stop)
    before = await cluster.client.detokenize(case.want.token_ids[:at])
    assert got.text == before  # the end token itself makes no text


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_stop_string_ends_it_wherever_it_comes(cluster: InProcess, case: Case, at: int) -> None:
    texts = [await cluster.client.detokenize([i]) for i in case.want.token_ids[:3]]
    got = await both_ways(cluster, case.prompt, max_tokens=NEW_TOKENS, stop=[texts[at]])
    whole = "".join(texts)
    assert got.text == whole[: whole.index(texts[at])]
    assert (got.finish_reason, got.choices[0].stop_text) == (FinishReason.STOP, texts[at])


async def test_the_models_own_end_token(tmp_path: Path, model: tuple[Path, Reference], case: Case) -> None:
    """In the configuration, not in the request; ignore_eos goes on behind it."""
    first = case.want.token_ids[0]
    folder, reference = tiny(tmp_path)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{first}]}}')
    assert torch.equal(reference.logits(case.prompt), model[1].logits(case.prompt))
    async with inprocess(config(folder, **QUIET)) as cluster:
        steps = cluster.nodes["decode-0"].steps
        got = await both_ways(cluster, case.prompt, max_tokens=NEW_TOKENS)
        assert (list(got.token_ids), got.text, got.finish_reason) == ([first], "", FinishReason.STOP)
        assert cluster.nodes["decode-0"].steps == steps
        got = await both_ways(cluster, case.prompt, max_tokens=4, ignore_eos=True)
        assert list(got.token_ids) == case.want.token_ids[:4]
        assert got.finish_reason is FinishReason.LENGTH
        await _min_tokens(cluster, case, reference, first)


async def _min_tokens(cluster: InProcess, case: Case, reference: Reference, end: int) -> None:
    """The end token is the likeliest at once; with a push it stays so at every later step."""
    for least in range(5):
        want, ids = [], list(case.prompt)
        while len(want) < NEW_TOKENS:
            logits = reference.logits(ids)[-1]
            logits[end] += 100
            if len(want) < least:
                logits[end] = -torch.inf
            want.append(int(logits.argmax()))
            ids.append(want[-1])
            if want[-1] == end:
                break
        got = await both_ways(
            cluster, case.prompt, max_tokens=NEW_TOKENS, min_tokens=least, logit_bias={end: 100.0}
        )
        assert list(got.token_ids) == want
        assert len(got.token_ids) == least + 1  # the end itself is the last one
        assert got.finish_reason is FinishReason.STOP


async def test_stop_ids_and_strings_within_the_first_min_tokens(cluster: InProcess, case: Case) -> None:
    ids = case.want.token_ids
    text = await cluster.client.detokenize(ids[:1])
    got = await both_ways(cluster, case.prompt, max_tokens=NEW_TOKENS, stop=[text], min_tokens=4)
    assert list(got.token_ids[:4]) == ids[:4]
    got = await both_ways(cluster, case.prompt, max_tokens=NEW_TOKENS, stop_token_ids=[ids[1]], min_tokens=3)
    assert got.token_ids[0] == ids[0]
    assert ids[1] not in got.token_ids[:3]
    assert len(got.token_ids) >= 3


# ---- length limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("small_pool", [False, True])
async def test_length_limits(model: tuple[Path, Reference], small_pool: bool) -> None:
    """The limit comes from the configuration, or from a pool that holds less (8 blocks of 4)."""
    sizes: dict[str, Any] = {"num_blocks": LIMIT // 4} if small_pool else {"max_model_len": LIMIT}
    nodes = {"decode_nodes": {"engine": sizes}} if small_pool else {"engine": sizes}
    async with inprocess(config(model[0], **QUIET, **nodes)) as cluster:
        assert [one.max_model_len for one in await cluster.client.models()] == [LIMIT]
        for length in (1, 30, 31):
            for most in (None, 1, 2, 1000):
                case = solid_case(model[1], length, min(most or 1000, LIMIT - length))
                options = {"max_tokens": most} if most else {}
                await exact(cluster, case, **{"max_tokens": None} | options)
        for length in (32, 33):
            with pytest.raises(
                InvalidArgument, match=rf"\b{length} tokens.*\b{LIMIT}\b.*\b{LIMIT - 1}\b"
            ) as e:
                await cluster.client.generate(prompt_of(length), max_tokens=1)
            assert e.value.field == "prompt"
        for field, prompt, options in (
            ("prompt", [], {}),
            ("max_tokens", [5], {"max_tokens": 0}),
            ("max_tokens", [5], {"max_tokens": -1}),
            ("min_tokens", prompt_of(30), {"min_tokens": 3}),
            ("min_tokens", [5], {"min_tokens": 3, "max_tokens": 2}),
        ):
            with pytest.raises(InvalidArgument) as e:
                await cluster.client.generate(prompt, **options)
            assert e.value.field == field
        await cluster.settled()


# ---- odd sampling -----------------------------------------------------------------------------------------


async def test_tiny_temperatures_are_greedy_and_neighbours_unmoved(
    cluster: InProcess, model: tuple[Path, Reference]
) -> None:
    """Greedy and sampled rows share every batch; a banned token never appears."""
    case = next(
        found
        for length in range(10, 60)
        if (found := solid_case(model[1], length, NEW_TOKENS)).want.margin > 0.05
    )
    banned = [i for i in range(100, 120) if i not in case.want.token_ids][:5]
    bias = dict.fromkeys(banned, -100.0)
    cold = [
        exact(cluster, case, temperature=t, seed=3, top_p=p, top_k=k, logit_bias=bias)
        for t in (0.0, 1e-30, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)
        for p, k in ((1.0, 0), (0.5, -1), (1e-6, 1000), (1.0, 1))
    ]
    hot = [
        cluster.client.generate(
            case.prompt, max_tokens=20, temperature=t, top_k=k, logit_bias=bias, ignore_eos=True, logprobs=0
        )
        for t in (2.0, 100.0)
        for k in (0, -1, 1000, VOCAB_SIZE)
    ]
    answers = await asyncio.gather(*cold, *hot)
    for answer in answers[len(cold) :]:
        assert not set(banned) & set(answer.token_ids)
        assert all(-9999.0 <= one.logprob <= 0.0 for one in answer.logprobs)
        assert list(answer.token_ids[:NEW_TOKENS]) != case.want.token_ids
    await cluster.settled()
