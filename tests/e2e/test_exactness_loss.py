"""A node is killed in the middle of answers: each goes on with not one token other than it would have had.

Real processes and SIGKILL. All answers of a test share the victim, since a drained peer takes none until the
kill, and steps are slow until then, so that it comes in their middle. The guard of each test is that every
answer did need a second attempt: for those that did not the kill comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from baton.core.batch import TokenLogprobs
from baton.core.request import FinishReason
from baton.router.text.load import load_tokenizer
from baton.runtime.client.convert import Collector
from baton.runtime.client.types import Completion, Delta
from tests.e2e.cluster import Cluster, config, eventually, running
from tests.e2e.exact import LOGPROB_TOLERANCE, Case, solid_case, tiny
from tests.e2e.faults import PATIENCE_S
from tests.models import MARGIN, Continuation, Reference
from tests.tokenizers_t import EOS_ID

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

NEW_TOKENS = 100
KILL_AFTER = 7
FAR = 60  # tokens; one that has them would soon be over
STEP_S = 0.04  # an answer takes seconds, whatever else the machine does
KILLS = 6  # at most, until one has come in the middle of every answer
LEAST = 94  # of min_tokens
LONG_PROMPT = 500
ALL = ("prefill-0", "prefill-1", "decode-0", "decode-1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("loss"))


@pytest.fixture(scope="module")
def case(model: tuple[Path, Reference]) -> Case:
    """Far from a tie with a frequency penalty, too."""
    for length in range(21, 40):
        found = solid_case(model[1], length, NEW_TOKENS)
        if _penalised(model[1], found.prompt, NEW_TOKENS).margin > MARGIN:
            return found
    raise AssertionError("no prompt is far from a tie both ways")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(model: tuple[Path, Reference]) -> AsyncIterator[Cluster]:
    settings = config(
        model[0],
        prefill=2,
        decode=2,
        engine={"chunk_tokens": 4, "num_blocks": 800},
        prefill_nodes={"engine": {"max_batch_tokens": 12}},  # long prompts take many steps
        router={"max_retries": 5, "lease_s": 20.0},
        supervise={"backoff_s": 0.01, "max_restarts": 1000},
    )
    async with running(settings) as deployment:
        yield deployment


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _none_stays_stopped(cluster: Cluster) -> AsyncIterator[None]:
    """One test's failure is not the next one's."""
    yield
    cluster.pace(0.0)
    for name in ALL:
        with contextlib.suppress(ProcessLookupError):  # killed, and not started again yet
            cluster.let_go(name)  # whoever has that place now
    for node in (await cluster.state()).nodes:
        if node.state == "draining":
            await cluster.drain(node.registration.node_id, False)


class Answer:
    """One stream, as far as the client has it."""

    def __init__(self, cluster: Cluster, prompt: list[int], **options: Any) -> None:
        options = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True} | options
        self._stream = cluster.client.stream(prompt, timeout_s=100, **options)
        self.deltas: list[Delta] = []
        self._collector = Collector()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> Completion:
        async for delta in self._stream:
            self.deltas.append(delta)
            self._collector.add(delta)
        return self._collector.completion()

    @property
    def tokens(self) -> int:
        return sum(len(delta.token_ids) for delta in self.deltas)


Asked = tuple[list[int], dict[str, Any]]


async def interrupted(cluster: Cluster, victim: str, until: int, asked: list[Asked]) -> list[Completion]:
    """The answers, of which each had at least `until` tokens, and not all of them, when the victim died: a
    decode node. Who was faster or slower is asked again."""
    met: dict[int, Completion] = {}
    for _ in range(KILLS):
        left = [i for i in range(len(asked)) if i not in met]
        answers = await _killed_beside(cluster, victim, until, [asked[i] for i in left])
        met |= {i: answer for i, answer in zip(left, answers, strict=True) if answer is not None}
        if len(met) == len(asked):
            return [met[i] for i in range(len(asked))]
    raise AssertionError("an answer was over before every kill")


async def _killed_beside(
    cluster: Cluster, victim: str, until: int, asked: list[Asked]
) -> list[Completion | None]:
    """The answers; None for one that was not met in its middle."""
    peer = victim.replace("0", "1")
    await cluster.up(*ALL)
    await cluster.drain(peer)
    cluster.pace(STEP_S)
    answers = [Answer(cluster, prompt, **options) for prompt, options in asked]
    try:
        await eventually(partial(_not_within, answers, until), 100)
        had = [answer.tokens for answer in answers]
        await cluster.drain(peer, False)
        cluster.kill(victim)
        cluster.pace(0.0)
        done = [await answer.task for answer in answers]
    finally:
        for answer in answers:
            answer.task.cancel()
    return [
        answer if tokens >= until and answer.timings.retries else None
        for tokens, answer in zip(had, done, strict=True)
    ]


async def _not_within(answers: list[Answer], least: int) -> str:
    tokens = [answer.tokens for answer in answers]
    return "" if min(tokens) >= least or max(tokens) >= FAR else f"{tokens} tokens"


# ---- decode -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def variants(model: tuple[Path, Reference], case: Case) -> dict[str, dict[str, Any]]:
    """stop: a text that begins before the kill, whenever that comes, and ends after it."""
    whole = _text(model[0], case)
    return {
        "greedy": {"logprobs": 3},
        "seeded": {"temperature": 1.0, "seed": 5, "logprobs": 0},
        "frequency": {"frequency_penalty": 1.0},
        "stop": {"stop": [whole[len(whole) // 10 : -len(whole) // 10]]},
        "stop kept": {"stop": [whole[len(whole) // 10 : -len(whole) // 10]], "include_stop": True},
        "least": {"min_tokens": LEAST, "logit_bias": {EOS_ID: 100.0}, "ignore_eos": False},
        "two": {"n": 2, "temperature": 1.0, "seed": 5},
        "ids only": {"tokens_only": True},
        "limited": {"temperature": 0.8, "seed": 9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
    }


def _text(folder: Path, case: Case) -> str:
    """Of the whole answer, where the prompt may end within a character."""
    detokenizer = load_tokenizer(str(folder)).detokenizer(case.prompt)
    return detokenizer.push(case.want.token_ids) + detokenizer.flush()


async def test_decode_dies_mid_stream(
    cluster: Cluster, model: tuple[Path, Reference], case: Case, variants: dict[str, dict[str, Any]]
) -> None:
    asked = [(case.prompt, options) for options in variants.values()]
    calm = [await Answer(cluster, *one[:1], **one[1]).task for one in asked]
    assert all(answer.timings.retries == 0 for answer in calm)
    hit = await interrupted(cluster, "decode-0", KILL_AFTER, asked)
    for name, want, got in zip(variants, calm, hit, strict=True):
        _same(name, want, got)
        assert got.timings.decode_node == "decode-1"
    _as_the_reference(model, case, dict(zip(variants, hit, strict=True)))
    await cluster.idle()


def _same(name: str, want: Completion, got: Completion) -> None:
    assert len(want.choices) == len(got.choices)
    for one, other in zip(want.choices, got.choices, strict=True):
        assert other.token_ids == one.token_ids, name
        assert (other.text, other.stop_text) == (one.text, one.stop_text), name
        assert other.finish_reason is one.finish_reason, name
        assert _flat(other.logprobs) == pytest.approx(_flat(one.logprobs), abs=LOGPROB_TOLERANCE), name
    made = sum(len(one.token_ids) for one in want.choices)
    assert got.usage.completion_tokens == want.usage.completion_tokens == made, name
    assert got.usage.prompt_tokens == want.usage.prompt_tokens, name


def _flat(logprobs: tuple[TokenLogprobs, ...]) -> list[float]:
    return [number for one in logprobs for number in (one.token_id, one.logprob, *(p for _, p in one.top))]


def _as_the_reference(model: tuple[Path, Reference], case: Case, got: dict[str, Completion]) -> None:
    """The undisturbed run could be wrong in the same way: where it is easy, compare with the dense model."""
    folder, reference = model
    assert list(got["greedy"].token_ids) == case.want.token_ids
    assert list(got["ids only"].token_ids) == case.want.token_ids
    assert got["ids only"].text == ""
    assert list(got["frequency"].token_ids) == _penalised(reference, case.prompt, NEW_TOKENS).token_ids
    assert (len(got["least"].token_ids), got["least"].token_ids[-1]) == (LEAST + 1, EOS_ID)
    assert len(got["seeded"].token_ids) == len(got["limited"].token_ids) == NEW_TOKENS
    assert got["seeded"].token_ids == got["two"].choices[0].token_ids != got["two"].choices[1].token_ids
    whole = _text(folder, case)
    assert got["stop"].finish_reason is FinishReason.STOP
    assert got["stop"].text == whole[: len(whole) // 10]
    assert got["stop kept"].text == whole[: -len(whole) // 10]


def _penalised(reference: Reference, prompt: list[int], new_tokens: int) -> Continuation:
    """Greedy with frequency_penalty 1; no logprobs."""
    output: list[int] = []
    margin = float("inf")
    for _ in range(new_tokens):
        logits = reference.logits([*prompt, *output])[-1]
        for token in output:
            logits[token] -= 1.0
        best = logits.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        output.append(int(logits.argmax()))
    return Continuation(output, [], margin)


# ---- prefill ----------------------------------------------------------------------------------------------


async def test_prefill_dies_in_the_middle_of_a_prompt(
    cluster: Cluster, model: tuple[Path, Reference], case: Case
) -> None:
    """No token was out: the client notices nothing. The guard looks at what the victim said before."""
    reference = model[1]
    long = [Case.of(reference, solid_case(reference, LONG_PROMPT + i, 2).prompt, 2) for i in range(3)]
    await cluster.up(*ALL)
    await cluster.drain("prefill-1")
    steps = (await cluster.node("prefill-0")).load.steps
    cluster.pace(STEP_S)  # so that each takes long
    answers = [Answer(cluster, one.prompt, max_tokens=2, logprobs=0) for one in long]

    async def not_computing() -> str:
        return "" if (await cluster.node("prefill-0")).load.steps > steps + 1 else "no chunk is done"

    await eventually(not_computing, 30)
    await cluster.drain("prefill-1", False)
    assert not any(answer.tokens for answer in answers), "a prompt was done before the kill"
    cluster.kill("prefill-0")
    cluster.pace(0.0)
    done = [await answer.task for answer in answers]
    assert any(got.timings.retries for got in done)  # others may have waited at the router
    for one, got in zip(long, done, strict=True):
        assert got.timings.prefill_node == "prefill-1"
        _equals(one.want, got)
    await cluster.idle()


async def test_prefill_dies_between_first_token_and_hand_off(
    cluster: Cluster, model: tuple[Path, Reference], case: Case
) -> None:
    """Decode is stopped, so the KV cannot leave; the client has the first token already."""
    await cluster.up(*ALL)
    cluster.signal("decode-0", signal.SIGSTOP)
    cluster.signal("decode-1", signal.SIGSTOP)
    await cluster.drain("prefill-1")
    answer = Answer(cluster, case.prompt, logprobs=0)

    async def no_token() -> str:
        return "" if answer.tokens else "no token"

    await eventually(no_token, 30)
    assert answer.tokens == 1
    await cluster.drain("prefill-1", False)
    cluster.kill("prefill-0")
    await asyncio.sleep(0.1)
    cluster.signal("decode-0", signal.SIGCONT)
    cluster.signal("decode-1", signal.SIGCONT)
    got = await answer.task
    assert got.timings.retries >= 1
    _equals(case.want, got)
    await cluster.idle(PATIENCE_S)  # a lease of 5 s, where decode had reserved for the dead


def _equals(want: Continuation, got: Completion) -> None:
    assert list(got.token_ids) == want.token_ids
    assert [one.logprob for one in got.logprobs] == pytest.approx(want.logprobs, abs=LOGPROB_TOLERANCE)
    assert got.finish_reason is FinishReason.LENGTH
    assert got.usage.completion_tokens == len(want.token_ids)
