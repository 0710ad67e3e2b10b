"""The generator against real servers: what it measures, and what it makes of their mistakes."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from baton.bench.load.generator import Limits, Log, fire
from baton.bench.load.grpc_target import GrpcTarget
from baton.bench.load.openai_target import OpenAiTarget
from baton.bench.load.plan import Plan, Prompt, shots, token_writer
from baton.bench.load.record import Outcome, Record
from baton.bench.load.target import Facts, Options, Target
from baton.bench.load.targets import parse_target
from baton.core.errors import Unavailable
from baton.core.request import Slo
from baton.sim.workload.arrival import Arrival
from tests.bench.openai_server import Script, Server, event, serving
from tests.fakes import StubConfig, StubNode, eventually, router_with

SLO = Slo(ttft_s=5.0, tpot_s=1.0)
LIMITS = Limits(timeout_s=20.0, drain_s=20.0)


def plan(*at_s: float, output_tokens: int = 4) -> Plan:
    arrivals = [Arrival(at, 9, output_tokens) for at in at_s]
    return Plan(shots(arrivals, token_writer(300), 1, SLO), 0.0, max(at_s) + 1.0)


async def fired(url: str, what: Plan, limits: Limits = LIMITS, options: Options | None = None) -> Log:
    target = parse_target(url, options or Options())
    await target.open()
    try:
        return await fire(target, what, limits)
    finally:
        await target.close()


async def one(server: Server, path: str = "", output_tokens: int = 4) -> Record:
    log = await fired(server.url + path, plan(0.0, output_tokens=output_tokens))
    return log.records[0]


# ---- what is measured ------------------------------------------------------------------------------------


async def test_grpc_latencies_are_at_least_the_scripted_ones() -> None:
    node = StubNode(config=StubConfig(step_s=0.03, prefill_s=0.1))
    async with router_with(node) as cluster:
        log = await fired(f"grpc://{cluster.app.address}", plan(0.0, 0.05, output_tokens=5))
        await cluster.all_idle()
    for record in log.records:
        assert record.outcome is Outcome.OK
        assert (record.output_tokens, record.used_prompt_tokens) == (5, 9)
        assert record.ttft_s is not None
        assert record.ttft_s >= 0.1
        assert record.tpot_s is not None
        assert record.e2e_s is not None
        assert record.e2e_s >= 0.1 + 4 * 0.03
        assert record.ttft_s + 4 * record.tpot_s == pytest.approx(record.e2e_s)
        assert sum(tokens for _, tokens in record.chunks) == 5
    sent = node.received[0]
    assert (sent.slo, sent.sampling.ignore_eos, sent.max_tokens) == (SLO, True, 5)
    assert node.received[0].prompt_ids != node.received[1].prompt_ids


@pytest.mark.parametrize("path", ["", "/v1", "/v1/completions"])
async def test_completions_latencies_are_at_least_the_scripted_ones(path: str) -> None:
    async with serving(Script(first_s=0.1, step_s=0.03)) as server:
        record = await one(server, path, output_tokens=5)
    assert record.outcome is Outcome.OK
    assert (record.output_tokens, record.used_prompt_tokens, len(record.chunks)) == (5, 7, 5)
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.1
    assert record.tpot_s is not None
    assert record.e2e_s is not None
    assert record.e2e_s >= 0.1 + 4 * 0.03
    assert record.ttft_s + 4 * record.tpot_s == pytest.approx(record.e2e_s)
    body, headers = server.bodies[0], server.headers[0]
    assert (body["model"], body["max_tokens"], body["ignore_eos"], len(body["prompt"])) == (
        "scripted",
        5,
        True,
        9,
    )
    assert (headers["x-slo-ttft-ms"], headers["x-slo-tpot-ms"]) == ("5000", "1000")


async def test_the_role_of_a_chat_is_no_first_token() -> None:
    async with serving(Script(step_s=0.05)) as server:
        target = parse_target(f"{server.url}/v1/chat/completions", Options())
        await target.open()
        words = shots([Arrival(0.0, 9, 3)], lambda arrival, number: Prompt((), "some words", 9), 0, SLO)
        log = await fire(target, Plan(words, 0.0, 1.0), LIMITS)
        await target.close()
    assert len(log.records[0].chunks) == 3
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "some words"}]


@pytest.mark.parametrize(("usage", "tokens"), [(True, [3, 2]), (False, [1, 1])])
async def test_tokens_are_what_usage_says_or_else_pieces(usage: bool, tokens: list[int]) -> None:
    async with serving(Script(tokens_per_piece=3, usage=usage)) as server:
        record = await one(server, output_tokens=5)
    assert sorted(n for _, n in record.chunks) == sorted(tokens)
    assert record.output_tokens == sum(tokens)


async def test_a_server_that_stalls_cannot_hide_it() -> None:
    """Coordinated omission: all requests that came meanwhile waited, each from its own time on."""
    times = [0.02 * i for i in range(20)]
    async with serving(Script(stall_from=5, stall_s=0.6)) as server:
        log = await fired(server.url, plan(*times, output_tokens=1))
    waited = [record.ttft_s or 0.0 for record in log.records]
    assert all(record.outcome is Outcome.OK for record in log.records)
    assert sum(ttft >= 0.3 for ttft in waited[4:]) >= 14
    assert waited[4] >= 0.6
    assert all(record.sent_s >= record.intended_s for record in log.records)


async def test_a_busy_event_loop_is_told_as_lateness() -> None:
    """What holds the generator up counts as latency, and is told apart."""
    async with serving(Script()) as server:
        target = parse_target(server.url, Options())
        await target.open()

        def watch(log: Log, now_s: float) -> bool:
            if 0.05 < now_s < 0.4:
                time.sleep(0.3)
            return False

        log = await fire(target, plan(*[0.02 * i for i in range(10)]), LIMITS, watch)
        await target.close()
    assert max(log.lags_s) >= 0.15
    assert max(record.lateness_s for record in log.records) >= 0.1
    late = max(log.records, key=lambda record: record.lateness_s)
    assert late.ttft_s is not None
    assert late.ttft_s >= late.lateness_s


# ---- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        (Script(status=429, headers={"Retry-After": "3"}), Outcome.REJECTED, "HTTP 429: not now"),
        (Script(status=503), Outcome.REJECTED, "HTTP 503: not now"),
        (Script(status=400), Outcome.BAD_REQUEST, "HTTP 400: not now"),
        (Script(status=500), Outcome.SERVER_ERROR, "HTTP 500: not now"),
        (Script(status=504), Outcome.TIMEOUT, "HTTP 504: not now"),
        (Script(break_after=2), Outcome.DISCONNECTED, ""),
        (Script(raw=b"data: {oops\n\n"), Outcome.MALFORMED, "an event that is not JSON: '{oops'"),
        (Script(raw=b"data: [1]\n\n"), Outcome.MALFORMED, "an event that is no object"),
        (Script(raw=b"hello\n\n"), Outcome.MALFORMED, "a line that begins with b'hello'"),
        (Script(raw=b"data: {}\n\n"), Outcome.MALFORMED, "an event with neither choices nor usage"),
        (Script(raw=b'data: {"choices": [3]}\n\n'), Outcome.MALFORMED, "a choice that is no object"),
        (Script(raw=b'data: "\xff"\n\n'), Outcome.MALFORMED, "an event that is not UTF-8"),
        (Script(raw=b""), Outcome.DISCONNECTED, "the stream ended before the answer did"),
        (Script(raw=event({"error": {"message": "out of memory"}})), Outcome.SERVER_ERROR, "out of memory"),
    ],
)
async def test_errors_are_counted_by_kind(script: Script, outcome: Outcome, error: str) -> None:
    async with serving(script) as server:
        record = await one(server)
    assert record.outcome is outcome
    assert record.error.startswith(error)
    assert record.error
    assert record.retry_after_s == (3.0 if script.status == 429 else None)
    assert len(record.chunks) == (2 if script.break_after else 0)


async def test_a_missing_done_is_forgiven() -> None:
    async with serving(Script(done=False)) as server:
        assert (await one(server)).outcome is Outcome.OK


async def test_an_answer_that_is_not_streamed_is_malformed() -> None:
    async with serving(Script()) as server:
        log = await fired(f"{server.url}/v1/models/v1/completions", plan(0.0))
        assert log.records[0].outcome is Outcome.BAD_REQUEST  # 404


async def test_nobody_there_is_told_before_the_run_and_in_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"grpc://127.0.0.1:{port}"):
        with pytest.raises(Unavailable, match="nothing answers at"):
            await parse_target(url, Options()).open()
    async with serving(Script()) as server:
        target = parse_target(server.url, Options())
        await target.open()
    log = await fire(target, plan(0.0), LIMITS)
    await target.close()
    assert log.records[0].outcome is Outcome.UNREACHABLE


async def test_what_takes_too_long_is_given_up() -> None:
    async with serving(Script(first_s=30.0)) as server:
        log = await fired(server.url, plan(0.0), Limits(timeout_s=0.2, drain_s=5.0))
        assert log.records[0].outcome is Outcome.TIMEOUT
        log = await fired(server.url, plan(0.0), Limits(timeout_s=20.0, drain_s=0.1))
        assert log.records[0].outcome is Outcome.UNFINISHED


async def test_a_run_that_is_ended_early_frees_the_nodes() -> None:
    node = StubNode(config=StubConfig(step_s=0.05))
    async with router_with(node) as cluster:
        target = GrpcTarget("t", f"grpc://{cluster.app.address}", Options())
        await target.open()
        what = plan(*[0.05 * i for i in range(100)], output_tokens=200)
        log = await fire(target, what, LIMITS, lambda log, now_s: now_s > 0.3)
        await target.close()
        assert 1 <= len(log.records) < 100
        assert log.stopped_s is not None
        assert {record.outcome for record in log.records} == {Outcome.UNFINISHED}
        await cluster.all_idle()


async def test_what_cannot_be_served_and_what_breaks_are_told_apart() -> None:
    node = StubNode(config=StubConfig(step_s=0.05))
    async with router_with(node) as cluster:
        url = f"grpc://{cluster.app.address}"
        too_long = Plan(shots([Arrival(0.0, 5000, 4)], token_writer(300), 1, SLO), 0.0, 1.0)
        assert (await fired(url, too_long)).records[0].outcome is Outcome.BAD_REQUEST
        running = asyncio.create_task(fired(url, plan(0.0, output_tokens=500)))
        await eventually(lambda: node.running)
        await node.stop()
        await cluster.app.stop()
        record = (await running).records[0]
        assert record.outcome in (Outcome.DISCONNECTED, Outcome.REJECTED)
        assert record.error


class Broken:
    """A target with a mistake in it."""

    name, url = "broken", "nowhere"

    async def open(self) -> Facts:
        return Facts()

    def prepare(self, shot: object) -> object:
        async def call(record: object, clock: object) -> None:
            raise ZeroDivisionError

        return call

    async def close(self) -> None: ...


async def test_a_mistake_of_ours_is_no_outcome() -> None:
    broken: Target = Broken()  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        await fire(broken, plan(0.0), LIMITS)


async def test_fields_and_headers_of_the_user_s_own() -> None:
    options = Options(
        body={"top_k": 1, "seed": None}, headers={"Authorization": "Bearer x"}, ignore_eos=False
    )
    async with serving(Script()) as server:
        await fired(server.url, plan(0.0), options=options)
    assert server.bodies[0]["top_k"] == 1
    assert server.bodies[0]["seed"] is None
    assert "ignore_eos" not in server.bodies[0]
    assert server.headers[0]["authorization"] == "Bearer x"
    json.dumps(server.bodies[0])
    assert isinstance(parse_target(server.url, options), OpenAiTarget)
