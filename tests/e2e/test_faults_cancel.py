"""Clients that leave, whenever and however: the others never notice, and nothing of them stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import torch

from baton.core.errors import BatonError, Cancelled, DeadlineExceeded
from baton.proto.v1 import inference_pb2 as pb
from baton.runtime.client.aio import AsyncStream
from baton.runtime.client.types import Timings
from baton.runtime.grpc_channel import channel
from tests.e2e.cluster import ALL_AT_ONCE, PATIENT, Cluster, config, running
from tests.e2e.exact import Case, all_exact, exact, solid_case, tiny
from tests.e2e.faults import (
    PATIENCE_S,
    TRIES,
    Streaming,
    back_to,
    ending,
    healthy,
    holdings,
    met,
    trouble,
    until,
)
from tests.relay import Relay

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_RUNNING = 8
LASTING = 8000  # tokens of an answer that is always cancelled
CHUNKED = 16  # long prompts at once
STEP_S = 0.01  # where what is asked for is not to be over before it was looked at
DEADLINE_S = 3.0  # enough for a first token on a busy machine
SOONER_S = 20.0  # than LASTING such steps take
NAMES = ("router-0", "prefill-0", "decode-0")


@dataclass
class World:
    cluster: Cluster
    cases: list[Case]
    streaming: Case
    lasting: Case  # never answered to its end, so whatever that would be
    long: Case
    log: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("cancel")
    model, reference = tiny(folder, max_position_embeddings=2 * LASTING)
    cases = [solid_case(reference, 5 + i, 8, prefix=[40 + i]) for i in range(8)]
    streaming, long = solid_case(reference, 5, 150), solid_case(reference, 400, 4)
    lasting = replace(streaming, want=replace(streaming.want, token_ids=[0] * LASTING))
    engine = {"chunk_tokens": 4, "max_batch_tokens": 8, "max_running": MAX_RUNNING, "num_blocks": LASTING}
    log = folder / "log"
    async with running(config(model, engine=engine, router=PATIENT | ALL_AT_ONCE), log) as cluster:
        await exact(cluster, cases[0])
        yield World(cluster, cases, streaming, lasting, long, log)


async def test_many_leave_and_the_others_stay(world: World) -> None:
    """LIFE2. The report: 200 leave within 1.5 median TTFTs, 8 at a time, beside 4 streams; here 120. Then
    everything is as before: answers, blocks, processes, descriptors, threads, memory."""
    cluster, draw = world.cluster, random.Random(2)
    await all_exact(cluster, world.cases)
    ttft_s = [(await exact(cluster, case)).timings.ttft_s or 0.0 for case in world.cases]
    median_s = sorted(ttft_s)[len(ttft_s) // 2]
    before = holdings(cluster)
    turn = asyncio.Semaphore(8)

    async def leaves(number: int) -> None:
        async with turn:
            case = world.long if number % 10 == 0 else world.cases[number % 8]
            stream = cluster.client.stream(case.prompt, max_tokens=8, salt=str(number))
            reading = asyncio.ensure_future(ending(_read(stream)))
            await asyncio.sleep(draw.uniform(0, 1.5 * max(median_s, 0.02)))
            stream.cancel()
            ended = await reading
            assert ended is None or isinstance(ended, Cancelled)

    stay = [Streaming(cluster, world.streaming, salt=f"stays {i}") for i in range(4)]
    await asyncio.gather(*(leaves(number) for number in range(120)))
    for stream in stay:
        assert (await stream.exact()).timings.retries == 0
    await cluster.idle(PATIENCE_S)
    await exact(cluster, world.cases[0])
    await back_to(cluster, before)


async def test_a_cancel_in_each_state(world: World) -> None:
    """CAN2: queued at the prefill node, in the second of its chunks, running at decode; a few of each. Held
    by SIGSTOP. (Transferring: test_faults_transfer; preempted, waiting at decode: test_faults_room.)"""
    cluster = world.cluster
    for round_number in range(3):
        steps = (await cluster.node("decode-0")).load.steps
        await cluster.hold("prefill-0")
        with cluster.slowed(STEP_S):
            try:
                held = [Streaming(cluster, world.lasting, salt=f"held {round_number} {i}") for i in range(8)]
                await until(lambda: _in_flight(cluster, 8), what="sent")
                await asyncio.gather(*(stream.cancelled() for stream in held))
            finally:
                cluster.let_go("prefill-0")
            await cluster.idle(PATIENCE_S)
            # The cancel follows the request, so some tokens may be made before it is known.
            assert (await cluster.node("decode-0")).load.steps < steps + LASTING / 8
            await _in_chunks_cancelled(world, salt=f"chunk {round_number}")
            running = Streaming(cluster, world.lasting, salt=f"running {round_number}")
            await running.some(5)
            await running.cancelled()
        await cluster.idle(PATIENCE_S)


async def _in_chunks_cancelled(world: World, salt: str) -> None:
    """They run two by two, in order: the first may be over when the node is held, the second half is not."""
    cluster = world.cluster
    for attempt in range(TRIES):
        steps = (await cluster.node("prefill-0")).load.steps
        streams = [Streaming(cluster, world.long, salt=f"{salt} {attempt} {i}") for i in range(CHUNKED)]
        await met(partial(_more_steps, cluster, steps), streams[-1])
        await cluster.hold("prefill-0")
        try:
            await cluster.caught_up()
            early = not await _in_flight(cluster, CHUNKED // 2)
            for stream in streams:
                stream.stream.cancel()
            ends = [await stream.end() for stream in streams]
        finally:
            cluster.let_go("prefill-0")
        if not early:
            assert all(isinstance(ended, Cancelled) for ended in ends[CHUNKED // 2 :]), ends
            return
        await cluster.idle(PATIENCE_S)
    raise AssertionError("half of them were always over")


async def _more_steps(cluster: Cluster, than: int) -> bool:
    return bool((await cluster.node("prefill-0")).load.steps > than)


async def _in_flight(cluster: Cluster, least: int) -> bool:
    return bool((await cluster.state()).in_flight >= least)


async def test_several_choices(world: World) -> None:
    """CAN3: n=4, ended after three messages, or when one choice has come to its own end; if nobody cancels,
    each goes on to its own end although others have."""
    cluster = world.cluster
    prompt = world.streaming.prompt
    seeded = {"temperature": 1.0, "seed": 3, "n": 4, "max_tokens": 60}
    whole = await cluster.client.generate(prompt, **seeded)
    lengths = [len(choice.token_ids) for choice in whole.choices]
    alone = await cluster.client.generate(prompt, **seeded | {"n": 1, "seed": 5})
    assert alone.token_ids == whole.choices[2].token_ids
    stop = whole.choices[0].token_ids[4]  # the first choice ends early
    ended = await cluster.client.generate(prompt, **seeded, stop_token_ids=[stop])
    assert [len(choice.token_ids) for choice in ended.choices] == [
        _length_until(choice.token_ids, stop) for choice in whole.choices
    ]
    for messages in (3, None):
        for _ in range(TRIES):  # its choices come to their own ends, soon
            with cluster.slowed(STEP_S):
                stream = cluster.client.stream(prompt, **seeded | {"max_tokens": 400}, stop_token_ids=[stop])
                left = await ending(_cancel_after(stream, messages))
            await cluster.idle(PATIENCE_S)
            if isinstance(left, Cancelled):
                break
        assert isinstance(left, Cancelled), left
    assert max(lengths) > 5


async def _cancel_after(stream: AsyncStream, messages: int | None) -> None:
    """None: once the first choice has ended."""
    seen = 0
    async for delta in stream:
        seen += 1
        if seen == messages or (messages is None and delta.finish_reason is not None):
            stream.cancel()


def _length_until(ids: tuple[int, ...], stop: int) -> int:
    return ids.index(stop) + 1 if stop in ids else len(ids)


async def test_equal_client_ids(world: World) -> None:
    """SCH4: at once, right after, after a cancel; each has its own answer, and cancelling one leaves the
    other."""
    cluster = world.cluster
    await all_exact(cluster, world.cases, request_id="same")
    for case in world.cases[:3]:
        await exact(cluster, case, request_id="same")
    with cluster.slowed(STEP_S):
        one = Streaming(cluster, world.lasting, request_id="same", salt="one")
        two = Streaming(cluster, world.streaming, request_id="same", salt="two")
        await one.some(2)
        await one.cancelled()
    assert (await two.exact()).request_id == "same"
    await exact(cluster, world.cases[0], request_id="")
    for bad in ("x" * 10_000, "a\nb", "é"):
        with pytest.raises(BatonError, match="request_id"):
            await exact(cluster, world.cases[0], request_id=bad)
    await cluster.idle(PATIENCE_S)


async def test_a_deadline_is_kept_everywhere(world: World) -> None:
    """GRPC2: passed on to the nodes, which keep it by their own clocks: also when nothing that the client
    says after its request arrives, and when the router has stopped meanwhile."""
    cluster = world.cluster
    with cluster.slowed(STEP_S):
        async with Relay(cluster.endpoint) as relay, channel(relay.address) as connection:
            call = _generate(connection, world, timeout_s=DEADLINE_S)
            assert await call.read() is not grpc.aio.EOF
            relay.up.swallow = True
            assert await _status(call) is grpc.StatusCode.DEADLINE_EXCEEDED
            await cluster.idle(SOONER_S)
        stream = cluster.client.stream([5, 6], max_tokens=LASTING, ignore_eos=True, timeout_s=DEADLINE_S)
        deltas = aiter(stream)
        await anext(deltas)
        await cluster.hold("router-0")
        try:
            await asyncio.sleep(DEADLINE_S + 0.2)  # the nodes have only their own clocks
        finally:
            cluster.let_go("router-0")
        with pytest.raises(DeadlineExceeded):
            async for _ in deltas:
                pass
        await cluster.idle(SOONER_S)
    with pytest.raises(DeadlineExceeded):
        await cluster.client.generate([5, 6], max_tokens=5, timeout_s=0.0)
    await exact(cluster, world.cases[0])


async def test_a_stream_that_is_never_half_closed(world: World) -> None:
    """GRPC2: a client that keeps its sending side open is answered as one that closes it at once is."""
    cluster = world.cluster
    async with channel(cluster.endpoint) as connection:
        method = connection.stream_stream(
            "/baton.v1.Inference/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        case = world.cases[1]
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=case.prompt), max_tokens=8)
        request.sampling.temperature, request.sampling.ignore_eos = 0.0, True
        call = method(timeout=PATIENCE_S)
        await call.write(request)
        got: list[int] = []
        while (message := await call.read()) is not grpc.aio.EOF:
            got.extend(message.token_ids)
        assert got == case.want.token_ids
        assert await call.code() is grpc.StatusCode.OK
        with cluster.slowed(STEP_S):
            open_end = method(timeout=2 * PATIENCE_S)
            request.max_tokens = LASTING
            await open_end.write(request)
            await open_end.read()
            open_end.cancel()
            await cluster.idle(PATIENCE_S)


async def test_times_add_up(world: World) -> None:
    """MET1, MET3: every part at least 0, together the whole, and about what the client sees; one token has no
    time per token. All by the router's clock: the nodes' do not matter."""
    cluster = world.cluster
    for case, tokens in ((world.streaming, 150), (world.cases[0], 2), (world.cases[0], 1), (world.long, 4)):
        for _ in range(TRIES):  # a busy machine may come late with the client's end of it
            started_s = time.monotonic()
            answer = await cluster.client.generate(
                case.prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True, salt="times"
            )
            client_s = time.monotonic() - started_s
            _check_times(answer.timings, client_s, tokens)
            if client_s - answer.timings.total_s < 0.1 + 0.1 * client_s:
                break
        else:
            raise AssertionError("they are never about what the client sees")


def _check_times(t: Timings, client_s: float, tokens: int) -> None:
    parts = (t.queue_s, t.prefill_s, t.transfer_s, t.decode_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(t.total_s, abs=1e-6)
    assert 0 < t.total_s <= client_s
    assert t.ttft_s is not None
    assert t.ttft_s == pytest.approx(t.queue_s + t.prefill_s, abs=1e-6)
    assert min(t.prefill_node_s, t.transfer_node_s) >= 0
    assert t.prefill_node_s <= t.total_s
    if tokens == 1:
        assert t.tpot_s is None
    else:
        assert t.tpot_s is not None
        assert 0 <= t.ttft_s + (tokens - 1) * t.tpot_s <= t.total_s + 1e-6


async def test_saturation_is_no_illness(world: World) -> None:
    """CFG2 d: four times as much as fits at once, and all processes live and are ready all the while."""
    cluster = world.cluster
    async with healthy(cluster, *NAMES):
        cases = world.cases * (4 * MAX_RUNNING // len(world.cases)) + [world.streaming] * MAX_RUNNING
        await asyncio.gather(*(exact(cluster, case, salt=f"full {i}") for i, case in enumerate(cases)))
    await cluster.idle(PATIENCE_S)


async def test_nothing_to_complain_of(world: World) -> None:
    assert trouble(world.log) == []


def _generate(connection: grpc.aio.Channel, world: World, timeout_s: float) -> object:
    method = connection.unary_stream(
        "/baton.v1.Inference/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=world.streaming.prompt), max_tokens=LASTING)
    request.sampling.ignore_eos = True
    return method(request, timeout=timeout_s)


async def _status(call: object) -> grpc.StatusCode:
    try:
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            pass
    except (grpc.RpcError, asyncio.CancelledError):
        pass
    return await call.code()  # type: ignore[attr-defined]


async def _read(stream: AsyncStream) -> None:
    async for _ in stream:
        pass
