"""`baton generate` and `baton chat` against a real router whose nodes follow a script."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from tests.cli.test_processes import BATON
from tests.fakes import StubConfig, StubNode, router_with, spell

TEXT = "hello world"


def node(step_s: float = 0.002, text: str = TEXT) -> StubNode:
    return StubNode(config=StubConfig(script=lambda r: spell(text)[: r.max_tokens], step_s=step_s))


def shell(line: str, address: str, given: bytes = b"") -> tuple[int, str, str]:
    """Run a shell line in which $BATON is the command."""
    environ = os.environ | {"BATON": BATON, "BATON_ENDPOINT": address}
    done = subprocess.run(["bash", "-c", line], input=given, capture_output=True, env=environ, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def run(line: str, stub: StubNode, given: bytes = b"") -> tuple[int, str, str]:
    async with router_with(stub) as cluster:
        return await asyncio.to_thread(shell, line, cluster.app.address, given)


@pytest.mark.parametrize(
    ("line", "given", "code", "message"),
    [
        ("generate x --seed 99999999999999999999999", b"", 2, "seed: is out of range: 9999"),
        ("generate x --max-tokens 99999999999999999999", b"", 2, "max_tokens: is out of range: 9999"),
        ("generate -", b"ab\xff", 2, "standard input is not UTF-8 text (byte 2)"),
        ("chat", b"ab\xff\n", 2, "standard input is not UTF-8 text"),
        ("generate x --logprobs 1", b"", 2, "--logprobs: they are printed with --json only"),
        ("generate x --temperature=-1", b"", 2, "temperature: must be at least 0, got -1.0"),
        ("generate x --top-p=2", b"", 2, "top_p: must be at least 0 and at most 1, got 2.0"),
    ],
)
async def test_bad_input_is_one_line(line: str, given: bytes, code: int, message: str) -> None:
    got, out, err = await run(f"LC_ALL=C.UTF-8 $BATON {line}", node(), given)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(f"error: {message}")


async def test_an_error_after_text_begins_on_its_own_line() -> None:
    code, out, err = await run("$BATON generate x --timeout 5", node(0.05, "a" * 400))
    assert (code, err) == (1, "error: the deadline passed\n")
    assert out.endswith("a\n")


async def test_a_reader_that_leaves_ends_it_quietly() -> None:
    line = "set -o pipefail; $BATON generate x | head -c 3"
    code, out, err = await run(line, node(text="a" * 200))
    assert (code, out, err) == (1, "aaa", "")


async def test_chat_commands_and_what_is_remembered() -> None:
    stub = node()
    code, out, err = await run("$BATON chat", stub, b"/help\n/nonsense\none\n/reset\ntwo\n/exit\nthree\n")
    assert (code, out) == (0, f"{TEXT}\n{TEXT}\n")
    assert "/reset  forget the conversation" in err
    assert "no such command: /nonsense (/help lists them)" in err


def shown_next(terminal: int) -> bytes:
    """The next output; b"" at the program's end. Fails where nothing comes for long."""
    assert select.select([terminal], [], [], 30.0)[0], "the terminal stays silent"
    try:
        return os.read(terminal, 4096)
    except OSError:  # that is how a terminal ends
        return b""


def at_terminal(
    address: str, args: list[str], act: Callable[[subprocess.Popen[bytes], int, bytes], None]
) -> str:
    """Run baton on a terminal; what it showed, and its exit code. act: called with its first output."""
    terminal, inner = pty.openpty()
    environ = os.environ | {"BATON_ENDPOINT": address, "TERM": "xterm"}
    process = subprocess.Popen([BATON, *args], stdin=inner, stdout=inner, stderr=inner, env=environ)
    os.close(inner)
    seen = b""
    try:
        while piece := shown_next(terminal):
            if not seen:
                act(process, terminal, piece)
            seen += piece
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    return f"{seen.decode()}[{process.returncode}]"


async def test_ctrl_c_ends_the_line() -> None:
    async with router_with(node(0.02, "a" * 500)) as cluster:
        shown = await asyncio.to_thread(
            at_terminal, cluster.app.address, ["generate", "x", "--max-tokens", "500"],
            lambda process, *_: process.send_signal(signal.SIGINT),
        )  # fmt: skip
        await cluster.all_idle(2.0)
    assert shown.endswith("a\r\n[130]")


async def test_a_person_is_told_why_the_answer_stops() -> None:
    async with router_with(node()) as cluster:
        args = ["generate", "x", "--max-tokens", "5"]
        shown = await asyncio.to_thread(at_terminal, cluster.app.address, args, lambda *_: None)
    assert shown.startswith("hello\r\n")
    assert "(stopped at --max-tokens 5)" in shown


def until_it_reads(process: subprocess.Popen[bytes]) -> None:
    """Python drops a SIGINT that comes between its prompt and its read; no person is as fast."""
    deadline_s = time.monotonic() + 20
    while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
        assert time.monotonic() < deadline_s, "it does not wait for its terminal"
        time.sleep(0.01)


async def test_ctrl_c_at_the_prompt_says_how_to_leave_and_then_leaves() -> None:
    def twice(process: subprocess.Popen[bytes], terminal: int, seen: bytes) -> None:
        for wanted in (rb"> ", rb"(?s)Ctrl-D leaves.*> "):
            while not re.search(wanted, seen):
                seen += shown_next(terminal)
            until_it_reads(process)
            process.send_signal(signal.SIGINT)

    async with router_with(node()) as cluster:
        shown = await asyncio.to_thread(at_terminal, cluster.app.address, ["chat"], twice)
    assert shown.endswith("[0]")
