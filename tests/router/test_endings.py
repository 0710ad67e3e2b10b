"""However a call ends, the caller gets a status, both nodes are freed, and every counter is zero again."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import grpc
import pytest

from baton.core.errors import InternalError, ResourceExhausted
from baton.core.load import Role
from baton.core.request import Request
from baton.proto.v1 import inference_pb2 as pb
from baton.proto.v1 import inference_pb2_grpc
from baton.router.machine_config import RouterConfig
from baton.runtime.grpc_channel import channel
from baton.runtime.grpc_errors import from_rpc_error
from tests.fakes import Cluster, StubConfig, StubNode, eventually, router_with
from tests.relay import Relay

LONG = pb.GenerateRequest(text="x", max_tokens=4000)
TRIES = 10  # of what only a busy machine can spoil


def pair(**config: Any) -> tuple[StubNode, StubNode]:
    return (
        StubNode("p", StubConfig(role=Role.PREFILL, **config)),
        StubNode("d", StubConfig(role=Role.DECODE, **config)),
    )


async def read_all(stub: Any, request: pb.GenerateRequest, **call: Any) -> list[int]:
    return [i async for m in stub.Generate(request, **call) for i in m.token_ids]


async def status_of(call: Any) -> grpc.StatusCode:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.RpcError, asyncio.CancelledError):
        pass
    return await call.code()


async def test_counters_after_a_hundred_cancels_at_random_moments() -> None:
    rng = random.Random(7)
    nodes = (*pair(step_s=0.002, prefill_s=0.01), StubNode("b", StubConfig(step_s=0.002)))
    async with router_with(*nodes) as cluster:

        async def cancelled() -> None:
            call = cluster.inference.Generate(LONG)
            await asyncio.sleep(rng.uniform(0, 0.06))
            call.cancel()
            assert await status_of(call) is grpc.StatusCode.CANCELLED

        async def normal() -> None:
            request = pb.GenerateRequest(text="x", max_tokens=20)
            assert await read_all(cluster.inference, request, timeout=20) == [3 + i for i in range(20)]

        work = [cancelled() for _ in range(100)] + [normal() for _ in range(20)]
        rng.shuffle(work)
        await asyncio.gather(*work)
        await cluster.all_idle()
        assert cluster.app.machine.in_flight == cluster.app.machine.queued == 0


async def test_a_node_that_makes_tokens_for_nobody_is_told_to_stop() -> None:
    """The abort came to decode before the hand-off did."""
    nodes = pair(step_s=0.01)
    async with router_with(*nodes) as cluster:
        call = cluster.inference.Generate(LONG)
        await eventually(lambda: nodes[1].running)
        (item,) = nodes[1].running.values()
        call.cancel()
        await cluster.all_idle(1.0)
        nodes[1]._add(item)
        await eventually(lambda: nodes[1].running)
        await cluster.all_idle(1.5)


async def test_failures_by_nodes_leave_no_count_behind() -> None:
    node = StubNode()
    machine = RouterConfig(max_retries=1, retry_backoff_s=0.001)
    async with router_with(node, machine=machine) as cluster:
        node.refuse = InternalError("broken")
        for _ in range(20):
            with pytest.raises(grpc.RpcError):
                await read_all(cluster.inference, LONG, timeout=5)
        await cluster.all_idle()
        node.refuse = None
        assert len(await read_all(cluster.inference, pb.GenerateRequest(text="x", max_tokens=3))) == 3


async def test_a_live_stream_stays_counted_when_the_node_announces_itself_again() -> None:
    nodes = (StubNode("a"), StubNode("b"))
    async with router_with(*nodes) as cluster:
        for node in nodes:
            node.gate.clear()
        request = pb.GenerateRequest(text="x", max_tokens=300)
        calls = [asyncio.ensure_future(read_all(cluster.inference, request)) for _ in range(4)]
        machine = cluster.app.machine
        await eventually(lambda: sum(machine.node_in_flight(n.node_id) for n in nodes) == 4)
        before = [machine.node_in_flight(n.node_id) for n in nodes]
        members = cluster.app.membership.members
        known = [id(members[node.node_id].facts) for node in nodes]
        for node in nodes:
            announcing = node._tasks.pop()
            announcing.cancel()
            node._tasks.append(asyncio.ensure_future(node._announce(cluster.app.registry_address)))
        await eventually(lambda: all(id(members[n.node_id].facts) not in known for n in nodes))
        assert [machine.node_in_flight(n.node_id) for n in nodes] == before
        for node in nodes:
            node.gate.set()
            node.config.step_s = 0
        assert [len(ids) for ids in await asyncio.gather(*calls)] == [300] * 4


async def test_equal_client_ids_are_no_trouble() -> None:
    async with router_with(StubNode(config=StubConfig(step_s=0.005))) as cluster:
        request = pb.GenerateRequest(text="x", max_tokens=30, request_id="same")
        first, second = (cluster.inference.Generate(request) for _ in range(2))
        await first.read()
        third = asyncio.ensure_future(read_all(cluster.inference, request))
        first.cancel()
        assert [i async for m in second for i in m.token_ids] == [3 + i for i in range(30)]
        assert await third == [3 + i for i in range(30)]
        assert await read_all(cluster.inference, request) == [3 + i for i in range(30)]
        await cluster.all_idle()


def uneven(request: Request) -> list[int]:
    """The third choice of a call is short: its id is the call's (router-number) and its own number."""
    third = request.id.count("-") == 3 and request.id.endswith("-2")
    return [5] * (5 if third else 4000)


async def test_cancelling_a_call_of_several_choices_ends_them_all() -> None:
    nodes = pair(step_s=0.002, script=uneven)
    async with router_with(*nodes) as cluster:
        other = asyncio.ensure_future(
            read_all(cluster.inference, pb.GenerateRequest(text="y", max_tokens=300))
        )
        call = cluster.inference.Generate(pb.GenerateRequest(text="x", n=4, max_tokens=4000))
        ended: set[int] = set()
        counts = dict.fromkeys(range(4), 0)
        async for message in call:
            counts[message.index] += len(message.token_ids)
            ended |= {message.index} if message.finish_reason else set()
            if ended and min(counts.values()) > 4 and sum(counts.values()) > 60:
                break
        assert ended == {2}  # one child's end leaves the others running
        call.cancel()
        await eventually(lambda: cluster.app.machine.in_flight <= 1, 1.0)
        await eventually(lambda: all(len(node.running) <= 1 for node in nodes), 1.0)
        assert len(await other) == 300
        await cluster.all_idle()


async def test_deadlines_hold_and_travel() -> None:
    nodes = pair(prefill_s=60.0)
    async with router_with(*nodes) as cluster:
        for _ in range(TRIES):  # a busy machine may be late with the request, and with the end
            nodes[0].received.clear()
            start = time.monotonic()
            assert await status_of(cluster.inference.Generate(LONG, timeout=0.3)) is (
                grpc.StatusCode.DEADLINE_EXCEEDED
            )
            took = time.monotonic() - start
            await cluster.all_idle(1.0)
            if nodes[0].received and took < 1.3:
                break
        assert took < 1.3
        assert 0 < (nodes[0].received[0].timeout_s or 0) <= 0.301  # whole ms, rounded up
        assert await status_of(cluster.inference.Generate(LONG, timeout=0)) is (
            grpc.StatusCode.DEADLINE_EXCEEDED
        )
        await cluster.all_idle(1.0)


async def test_the_deadline_holds_by_the_routers_own_clock() -> None:
    nodes = pair(prefill_s=60.0)
    async with (
        router_with(*nodes) as cluster,
        Relay(cluster.app.address) as relay,
        channel(relay.address) as to_router,
    ):
        call = inference_pb2_grpc.InferenceStub(to_router).Generate(LONG, timeout=2.0)
        await eventually(lambda: nodes[0].running)
        relay.up.swallow = True  # what the client sends from now on, a cancel too, never arrives
        assert await status_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        await cluster.all_idle(1.5)


async def test_a_default_deadline_for_calls_without_one() -> None:
    async with router_with(*pair(prefill_s=60.0), default_timeout_s=0.2) as cluster:
        assert await status_of(cluster.inference.Generate(LONG)) is grpc.StatusCode.DEADLINE_EXCEEDED
        await cluster.all_idle(1.0)


async def test_stopping_the_router_gives_every_caller_a_status() -> None:
    nodes = pair(step_s=0.005)
    async with router_with(*nodes) as cluster:
        calls = [cluster.inference.Generate(LONG) for _ in range(5)]
        short = cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=30))
        for call in calls:
            await call.read()
        stopping = asyncio.ensure_future(cluster.app.stop(drain_s=3.0))
        await eventually(lambda: cluster.app.calls.draining)
        late = cluster.inference.Generate(LONG)
        assert await status_of(late) is grpc.StatusCode.UNAVAILABLE
        assert await status_of(short) is grpc.StatusCode.OK  # there was time enough for this one
        assert {await status_of(call) for call in calls} == {grpc.StatusCode.UNAVAILABLE}
        await stopping
        await eventually(lambda: not any(node.running for node in nodes), 1.0)


async def test_shedding_says_when_to_come_back() -> None:
    node = StubNode(config=StubConfig(max_running=1))
    async with router_with(node, machine=RouterConfig(max_queued=1, max_node_requests=1)) as cluster:
        node.gate.clear()
        calls = [cluster.inference.Generate(LONG) for _ in range(6)]
        await eventually(lambda: any(call.done() for call in calls))
        shed = [call for call in calls if call.done()]
        for call in shed:
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            error = from_rpc_error(caught.value)
            assert isinstance(error, ResourceExhausted)
            assert error.retry_after_s
        for call in calls:
            call.cancel()
        node.gate.set()
        await cluster.all_idle()


async def test_a_lost_node_costs_the_client_nothing() -> None:
    nodes = (StubNode("a", StubConfig(step_s=0.005)), StubNode("b", StubConfig(step_s=0.005)))
    async with router_with(*nodes) as cluster:
        request = pb.GenerateRequest(text="x", max_tokens=200)
        calls = [asyncio.ensure_future(read_all(cluster.inference, request)) for _ in range(6)]
        await eventually(lambda: nodes[0].running and nodes[1].running)
        steps = nodes[0].steps
        await eventually(lambda: nodes[0].steps > steps + 10)
        await nodes[0].stop()
        for ids in await asyncio.gather(*calls):
            assert ids == [3 + i % 253 for i in range(200)]
        assert [r for r in nodes[1].received if r.attempt == 1 and r.output_ids]
        await idle_but_for(cluster, "a")


async def idle_but_for(cluster: Cluster, lost: str) -> None:
    machine = cluster.app.machine
    await eventually(lambda: not (machine.in_flight or machine.queued or cluster.app.driver.open_requests))
    assert lost not in cluster.app.membership.members


async def test_timings_add_up_and_hold_no_nonsense() -> None:
    nodes = pair(step_s=0.005, prefill_s=0.02)
    async with router_with(*nodes) as cluster:
        for tokens in (1, 2, 20):
            start = time.monotonic()
            request = pb.GenerateRequest(text="x", max_tokens=tokens)
            *_, last = [m async for m in cluster.inference.Generate(request)]
            took, t = time.monotonic() - start, last.timings
            parts = (t.queue_s, t.prefill_s, t.transfer_s, t.decode_s)
            assert min(parts) >= 0
            assert sum(parts) == pytest.approx(t.total_s, abs=1e-9)
            assert 0 < t.ttft_s <= t.total_s <= took
            assert t.HasField("tpot_s") == (tokens >= 2)
            assert (t.prefill_node, t.decode_node) == ("p", "d")
            if tokens != 2:  # with two, decode's word may come before prefill's that it has handed off
                assert (t.transfer_bytes > 0) == (tokens > 1)
        metrics = cluster.app.metrics
        samples = {
            s.name: s.value for m in metrics.registry.collect() for s in m.samples if not s.labels.get("le")
        }
        assert samples["vllm:time_to_first_token_seconds_count"] == 3
        assert samples["vllm:e2e_request_latency_seconds_count"] == 3
        assert samples["vllm:request_time_per_output_token_seconds_count"] == 2
        # Tokens that came together with the first are not told apart in time.
        assert 15 <= samples["vllm:inter_token_latency_seconds_count"] <= 0 + 1 + 19
        assert samples["vllm:generation_tokens_total"] == 23
        assert samples["baton_bad_measurements_total"] == 0
        ends_s = [await _after_the_last(cluster) for _ in range(TRIES)]
        assert 0 <= min(ends_s) < 0.05


async def _after_the_last(cluster: Cluster) -> float:
    """How long after its last token an answer ends, by its timings."""
    *_, last = [m async for m in cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=20))]
    t: float = last.timings.total_s - last.timings.ttft_s - 19 * last.timings.tpot_s
    return t


async def test_an_answer_of_eos_alone_has_no_time_per_token() -> None:
    async with router_with(StubNode(config=StubConfig(script=lambda r: [2]))) as cluster:
        *_, last = [m async for m in cluster.inference.Generate(LONG)]
        assert last.usage.completion_tokens == 1
        assert not last.text
        assert last.stop_token_id == 2
        assert not last.timings.HasField("tpot_s")


async def test_a_cancel_before_the_first_token_adds_no_latency_sample() -> None:
    node = StubNode()
    async with router_with(node) as cluster:
        node.gate.clear()
        call = cluster.inference.Generate(LONG)
        await eventually(lambda: node.running)
        call.cancel()
        await cluster.all_idle()
        names = {s.name: s.value for m in cluster.app.metrics.registry.collect() for s in m.samples}
        assert names["vllm:time_to_first_token_seconds_count"] == 0
        assert names["vllm:request_success_total"] == 1


async def test_every_rpc_is_counted_once_by_method_and_code() -> None:
    async with router_with(StubNode()) as cluster:
        registry = cluster.app.metrics.registry

        def count(method: str, code: str) -> float:
            labels = {"method": f"baton.v1.{method}", "code": code}
            return registry.get_sample_value("baton_rpcs_total", labels) or 0.0

        async for _ in cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=2)):
            pass
        with pytest.raises(grpc.RpcError):
            await cluster.inference.Generate(pb.GenerateRequest(model="other")).read()
        with pytest.raises(grpc.RpcError):
            await cluster.channel.unary_unary("/baton.v1.Inference/Unheard")(b"")
        await eventually(lambda: count("Inference/Generate", "OK") == 1)
        await eventually(lambda: count("Inference/Generate", "NOT_FOUND") == 1)
        assert count("Inference/Unheard", "UNIMPLEMENTED") == 0  # names that callers make up are no labels
