"""The client library against a real router: typed results, errors, cancelling, threads, forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

import baton
from baton.core.errors import Cancelled, DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from baton.core.request import FinishReason
from tests.fakes import StubConfig, StubNode, router_with, spell


def words() -> StubNode:
    return StubNode(config=StubConfig(script=lambda r: spell("hello world")[: r.max_tokens], step_s=0.002))


async def test_asyncio_client() -> None:
    async with router_with(words()) as cluster, baton.AsyncClient(cluster.app.address) as client:
        whole = await client.generate("say it", max_tokens=11, n=2, logprobs=1, request_id="r1")
        assert [c.text for c in whole.choices] == ["hello world"] * 2
        assert whole.token_ids == tuple(spell("hello world"))
        assert len(whole.logprobs) == 11
        assert whole.finish_reason is FinishReason.LENGTH
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 22)
        assert whole.timings.ttft_s is not None
        assert whole.request_id == "r1"
        assert (await client.generate(spell("ids"), max_tokens=5)).text == "hello"
        chat = [{"role": "user", "content": "hi"}]
        assert (await client.generate(chat, stop=["o w"])).text == "hell"
        assert await client.detokenize(await client.tokenize("caf\u00e9")) == "caf\u00e9"
        (model,) = await client.models()
        assert (model.name, model.vocab_size) == ("stub", 331)


async def test_errors_are_the_servers_own() -> None:
    async with router_with(words()) as cluster, baton.AsyncClient(cluster.app.address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.generate("x", top_p=2.0)
        assert caught.value.field == "top_p"
        with pytest.raises(InvalidArgument, match="seed: is out of range: 18446744073709551616"):
            await client.generate("x", seed=2**64)
        with pytest.raises(InvalidArgument, match="max_tokens: is out of range"):
            await client.generate("x", max_tokens=10**20)
        with pytest.raises(InvalidArgument, match="text: is not text that UTF-8 can hold"):
            await client.generate("x\udcff")
        with pytest.raises(InvalidArgument):
            await client.generate([2**63])
        with pytest.raises(InvalidArgument, match="prompt: is not text that UTF-8 can hold"):
            await client.generate([{"role": "user", "content": "x\udcff"}])
        with pytest.raises(TypeError, match="unknown option 'tempreature'; did you mean 'temperature'"):
            await client.generate("x", tempreature=1.0)
        async with baton.AsyncClient(cluster.app.address, model="other") as other:
            with pytest.raises(NotFound):
                await other.tokenize("x")
        with pytest.raises(DeadlineExceeded):
            await client.generate("x", timeout_s=0.0)
        address = cluster.app.address
    async with baton.AsyncClient(address) as client:
        with pytest.raises(Unavailable, match=f"^nothing answers at {address}$"):
            await client.generate("x")


async def test_a_deadline_or_a_broken_connection_in_our_words() -> None:
    async with router_with(StubNode()) as cluster:
        async with baton.AsyncClient(cluster.app.address) as client:
            with pytest.raises(DeadlineExceeded, match=r"^the deadline passed"):
                await client.generate("x", max_tokens=4000, timeout_s=0.3)
        await cluster.all_idle(1.0)


async def test_a_router_that_vanishes_in_the_middle_broke_the_connection() -> None:
    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """An HTTP/2 server that settles on the settings and leaves when the call has come."""
        writer.write(b"\0\0\0\4\0\0\0\0\0")
        await reader.readuntil(b"baton.v1.Inference")
        writer.close()

    async with await asyncio.start_server(vanish, "127.0.0.1", 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        async with baton.AsyncClient(address) as client:
            with pytest.raises(Unavailable, match=f"^the connection to {address} broke$"):
                await client.generate("x")


async def test_leaving_a_stream_frees_the_nodes() -> None:
    node = StubNode()
    async with router_with(node) as cluster, baton.AsyncClient(cluster.app.address) as client:
        async with client.stream("x", max_tokens=4000) as stream:
            async for delta in stream:
                assert delta.token_ids
                break
        await cluster.all_idle(1.0)
        stream = client.stream("x", max_tokens=4000)
        deltas = aiter(stream)
        await anext(deltas)
        stream.cancel()
        with pytest.raises(Cancelled):
            await anext(deltas)
        await cluster.all_idle(1.0)


async def test_threads_share_a_client() -> None:
    async with router_with(words()) as cluster:
        loop = asyncio.get_running_loop()
        with baton.Client(cluster.app.address) as client, ThreadPoolExecutor(8) as threads:
            calls = [
                loop.run_in_executor(threads, lambda: client.generate("x", max_tokens=11).text)
                for _ in range(24)
            ]
            assert set(await asyncio.gather(*calls)) == {"hello world"}

            def some() -> list[str]:
                with client.stream("x", max_tokens=11) as stream:
                    return [delta.text for delta in stream]

            assert "".join(await loop.run_in_executor(threads, some)) == "hello world"
            tokens = await loop.run_in_executor(threads, client.tokenize, "abc")
            assert tokens == tuple(spell("abc"))


def test_importing_the_package_brings_no_grpc() -> None:
    code = "import sys, baton; sys.exit('grpc' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=90, check=False).returncode == 0


FORK = """
    import multiprocessing, sys
    import baton
    from baton.core.errors import FailedPrecondition

    def work(make):
        try:
            (baton.Client(sys.argv[1]) if make else client).models(timeout_s=2)
        except FailedPrecondition as error:
            return "spawn" in error.message

    if __name__ == "__main__":
        client = baton.Client(sys.argv[1])
        stream = iter(client.stream("x", max_tokens=11, timeout_s=20))
        first = next(stream).text
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(work, [True, False]) == [True, True]
        assert first + "".join(delta.text for delta in stream) == "hello world"
        print("fine")
"""


async def test_a_forked_child_is_told_instead_of_hanging() -> None:
    async with router_with(words()) as cluster:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W", "ignore",
            "-c", textwrap.dedent(FORK),
            cluster.app.address,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(child.communicate(), 90)
        assert out.decode().strip() == "fine", err.decode()
