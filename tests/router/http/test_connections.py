"""Clients that leave, that do not read, that send slowly or nonsense; and a router that stops under them."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import time
from typing import Any

import httpx2
import openai
import pytest

from baton.core.load import Role
from baton.proto.v1 import inference_pb2 as pb
from baton.router.http import body, server
from baton.router.http.server import HttpOptions, HttpServer
from baton.runtime.grpc_server import BindError
from tests.e2e.cluster import eventually as until_nothing
from tests.fakes import StubConfig, StubNode, eventually
from tests.router.http.kit import USER, Front, events, http_router

TEXT = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}


def pair(**config: Any) -> tuple[StubNode, StubNode]:
    return (
        StubNode("p", StubConfig(role=Role.PREFILL, **config)),
        StubNode("d", StubConfig(role=Role.DECODE, **config)),
    )


async def connect(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = front.cluster.app.http_address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def raw(asked: dict[str, Any], path: str = TEXT) -> bytes:
    data = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_both_nodes_within_a_second(stream: bool) -> None:
    nodes = pair(step_s=0.01)
    async with http_router(*nodes) as front:
        _reader, writer = await connect(front)
        writer.write(raw(LONG | {"stream": stream, "n": 3}))
        await eventually(lambda: len(nodes[1].running) == 3)
        writer.transport.abort()
        await front.cluster.all_idle(1.0)
        assert len(nodes[0].aborted) + len(nodes[1].aborted) >= 3


async def test_a_client_that_closes_openais_stream_frees_both_nodes() -> None:
    nodes = pair(step_s=0.01)
    async with http_router(*nodes) as front:
        stream = await front.openai.chat.completions.create(
            model="stub",
            messages=USER,  # type: ignore[arg-type]
            max_tokens=4000,
            stream=True,
        )
        async for _chunk in stream:
            break
        await stream.close()
        await front.cluster.all_idle(1.0)


async def test_leaving_with_several_prompts_and_before_anything_runs() -> None:
    nodes = pair(step_s=0.01)
    async with http_router(*nodes) as front:
        nodes[0].delay_s = 0.3
        _reader, writer = await connect(front)
        writer.write(raw(LONG | {"prompt": ["a", "b", "c"], "n": 2, "stream": True}))
        await eventually(lambda: front.cluster.app.driver.open_requests == 6)
        writer.transport.abort()
        await front.cluster.all_idle(1.5)


async def test_counters_after_clients_that_leave_at_random_moments() -> None:
    rng = random.Random(5)
    nodes = pair(step_s=0.002, prefill_s=0.01)
    async with http_router(*nodes) as front:

        async def leaving() -> None:
            _reader, writer = await connect(front)
            writer.write(raw(LONG | {"stream": rng.random() < 0.5}))
            await asyncio.sleep(rng.uniform(0, 0.06))
            writer.transport.abort()

        async def staying() -> None:
            response = await front.post(TEXT, {"prompt": "x", "max_tokens": 20})
            assert response.json()["usage"]["completion_tokens"] == 20

        work = [leaving() for _ in range(60)] + [staying() for _ in range(10)]
        rng.shuffle(work)
        await asyncio.gather(*work)
        await front.cluster.all_idle()
        assert front.cluster.app.machine.in_flight == front.cluster.app.machine.queued == 0


async def test_a_client_that_does_not_read_disturbs_nobody_and_loses_nothing() -> None:
    node = StubNode(config=StubConfig(step_s=0.0, max_model_len=10_000))
    async with http_router(node) as front:
        reader, writer = await connect(front)
        writer.transport.pause_reading()
        await eventually(lambda: _connections(front))
        (held,) = _connections(front)
        held.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        asked = {"prompt": "x", "max_tokens": 6000, "stream": True, "return_token_ids": True, "logprobs": 5}
        writer.write(raw(asked))
        await eventually(lambda: len(node.running) == 1)
        took: list[float] = []
        for _ in range(5):
            start = time.monotonic()
            await front.post(TEXT, {"prompt": "y", "max_tokens": 20})
            took.append(time.monotonic() - start)
        assert sorted(took)[2] < 2.0  # a busy machine may hold up one or two
        await eventually(lambda: not node.running, 100.0)  # it never waits for the slow client
        assert held.flow.write_paused
        assert held.transport.get_write_buffer_size() < 2**18
        writer.transport.resume_reading()
        got = b""
        while b"[DONE]" not in got:
            got += await asyncio.wait_for(reader.read(2**20), 30)
        # Chunks of HTTP are events, but for those that are cut in several.
        ids = [i for m in re.findall(rb'"token_ids":\[([0-9,]*)\]', got) for i in m.decode().split(",") if i]
        assert [int(i) for i in ids] == [3 + i % 253 for i in range(6000)]
        writer.close()
        await front.cluster.all_idle()


def _connections(front: Front) -> list[Any]:
    http = front.cluster.app._http
    assert http is not None
    return list(http._server.server_state.connections)


async def test_one_event_per_token_on_an_idle_router() -> None:
    async with http_router(StubNode(config=StubConfig(step_s=0.02))) as front:
        response = await front.post(TEXT, {"prompt": "x", "max_tokens": 20, "stream": True})
        assert len(events(response.text)) >= 19


async def test_a_body_that_comes_in_pieces_and_one_that_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_router(StubNode()) as front:
        reader, writer = await connect(front)
        data = raw({"prompt": "x", "max_tokens": 1})
        for start in range(0, len(data), 50):
            writer.write(data[start : start + 50])
            await asyncio.sleep(0.01)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        monkeypatch.setattr(body, "READ_TIMEOUT_S", 0.3)
        reader, writer = await connect(front)
        writer.write(data[:-5])
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_head_that_never_comes_or_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    async with http_router(StubNode()) as front:
        for sent in (b"", b"GET /v1/models HTTP/1.1\r\nho"):
            reader, writer = await connect(front)
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        front.cluster.nodes[0].config.prefill_s = 0.5  # and one whose answer takes longer than that
        for _ in range(10):
            if answer := await _answered_late(front):
                break  # else the machine took so long that not even its head came in time
        assert answer.startswith(b"HTTP/1.1 200")


async def _answered_late(front: Front) -> bytes:
    """The first line of an answer to a request that has come whole; empty: the connection was closed."""
    node = front.cluster.nodes[0]
    node.received.clear()
    reader, writer = await connect(front)
    writer.write(raw({"prompt": "a", "max_tokens": 2}))
    try:
        await eventually(lambda: node.received or reader.at_eof())
        came = bool(node.received)
        writer.write(b"\r\n")  # as some write behind a body
        line = await asyncio.wait_for(reader.readline(), 30)
        assert line or not came, "closed although its request had come"
        return line
    finally:
        writer.close()


async def test_openais_client_gives_up_and_the_nodes_are_freed() -> None:
    nodes = pair(step_s=0.05)
    async with http_router(*nodes) as front:
        impatient = front.openai.with_options(timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            await impatient.completions.create(model="stub", prompt="x", max_tokens=4000)
        await front.cluster.all_idle(1.0)


async def test_expect_is_answered_before_a_body_that_is_too_large_is_sent() -> None:
    async with http_router(StubNode()) as front:
        reader, writer = await connect(front)
        head = "POST {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
        writer.write((head.format(TEXT) + f"content-length: {2**27}\r\n\r\n").encode())
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_what_is_no_http_and_heads_without_end() -> None:
    async with http_router(StubNode()) as front:
        reader, writer = await connect(front)
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 400")
        writer.close()
        for endless in (b"a: b\r\n", b"x"):
            reader, writer = await connect(front)
            writer.write(b"GET /v1/models HTTP/1.1\r\n" + (b"a: " if endless == b"x" else b""))
            try:
                for _ in range(200):
                    writer.write(endless * (4096 // len(endless)))
                    await writer.drain()
                answer = await asyncio.wait_for(reader.readline(), 30)
                assert answer.startswith(b"HTTP/1.1 400")
            except ConnectionError:
                pass  # it was reset while there was more to send
            writer.close()
        assert (await front.plain.get("/v1/models")).status_code == 200


async def test_two_requests_at_once_on_one_connection() -> None:
    async with http_router(StubNode()) as front:
        reader, writer = await connect(front)
        writer.write(raw({"prompt": "a", "max_tokens": 2}) + raw({"prompt": "b", "max_tokens": 3}))
        for made in (2, 3):
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode()
            size = int(head.lower().partition("content-length: ")[2].split()[0])
            assert json.loads(await reader.readexactly(size))["usage"]["completion_tokens"] == made
        writer.close()


async def test_draining_finishes_streams_and_takes_nothing_new() -> None:
    node = StubNode(config=StubConfig(step_s=0.01))
    async with http_router(node) as front:
        assert (await front.plain.get("/health/ready")).status_code == 200
        running = asyncio.ensure_future(
            front.post(TEXT, {"prompt": "x", "max_tokens": 60, "stream": True, "ignore_eos": True})
        )
        await eventually(lambda: node.running)
        node.gate.clear()
        stopping = asyncio.ensure_future(front.cluster.app.stop(drain_s=30))
        await eventually(lambda: front.cluster.app.calls.draining)
        ready = await front.plain.get("/health/ready")
        assert (ready.status_code, ready.text) == (503, "draining\n")
        assert (await front.plain.get("/health/live")).status_code == 200
        refused = await front.post(TEXT, {"prompt": "x"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        node.gate.set()
        *_, last, done = events((await running).text)
        assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        await stopping
        with pytest.raises(httpx2.ConnectError):
            await front.plain.get("/health/live")


async def test_a_stop_that_waits_for_nobody_tells_streams_why() -> None:
    node = StubNode(config=StubConfig(step_s=0.01))
    async with http_router(node) as front:
        running = asyncio.ensure_future(front.post(TEXT, LONG | {"stream": True}))
        waiting = asyncio.ensure_future(front.post(TEXT, LONG))
        await eventually(lambda: len(node.running) == 2 and node.steps > 5)
        begun = time.monotonic()
        await front.cluster.app.stop()
        assert time.monotonic() - begun < 20.0  # its streams would take twice as long
        assert events((await running).text)[-1]["error"]["code"] == "unavailable"
        assert (await waiting).status_code == 503


async def test_http_and_grpc_count_against_the_same_limits_and_metrics() -> None:
    node = StubNode(config=StubConfig(step_s=0.01))
    async with http_router(node) as front:
        call = front.cluster.inference.Generate(pb.GenerateRequest(text="x", max_tokens=4000))
        running = asyncio.ensure_future(front.post(TEXT, LONG))
        await eventually(lambda: front.cluster.app.machine.in_flight == 2)
        metrics = (await front.plain.get("/metrics")).text
        assert "vllm:num_requests_running" in metrics
        call.cancel()
        running.cancel()
        await front.cluster.all_idle()
        await front.post(TEXT, {"prompt": "x", "max_tokens": 1})
        line = 'baton_http_requests_total{model_name="stub",route="POST /v1/completions",status="%s"} 1.0'

        async def missing() -> str:
            metrics = (await front.plain.get("/metrics")).text
            return ", ".join(wanted for wanted in (line % 200, line % 499) if wanted not in metrics)

        await until_nothing(missing, 10.0)
        assert (await front.plain.get("/version")).json()["version"]


async def test_a_port_in_use_is_told_and_one_that_is_shared_is_not() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    first = HttpServer(app, HttpOptions(reuse_port=True))
    await first.start()
    second = HttpServer(app, HttpOptions(port=first.port, reuse_port=True))
    await second.start()
    third = HttpServer(app, HttpOptions(port=first.port))
    with pytest.raises(BindError) as caught:
        await third.start()
    assert caught.value.field == "router.http.port"
    assert "in use" in str(caught.value)
    for one in (first, second, third):
        await one.stop()
