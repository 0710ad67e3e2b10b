"""Log lines of a real process: one JSON object each, ours and libraries' alike."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

PROGRAM = """
import logging, threading, structlog
from grpc._cython.cygrpc import ExecuteBatchError
from baton.runtime.config import LoggingConfig
from baton.runtime.logs import configure_logs, request_context

early = structlog.get_logger("early")
configure_logs(LoggingConfig(level="{level}", format="{format}"), "prefill-0")
early.info("hello", n=1)
early.debug("detail")
with request_context("r-1"):
    early.warning("inside")
try:
    raise ExecuteBatchError('Failed "execute_batch": (<grpc._cython.cygrpc.SendStatusFromServerOperation>,)')
except ExecuteBatchError:
    logging.getLogger("grpc._cython.cygrpc").exception("a client has left")
try:
    raise ExecuteBatchError('Failed "execute_batch": (<grpc._cython.cygrpc.SendMessageOperation>,)')
except ExecuteBatchError:
    logging.getLogger("grpc._cython.cygrpc").exception("no message")
logging.getLogger("library").warning("from %s", "a library")
thread = threading.Thread(target=lambda: early.info("from a thread"))
thread.start(); thread.join()
secret = "the prompt"
try:
    1 / 0
except ZeroDivisionError:
    early.exception("failed")
"""


def run(level: str, form: str) -> str:
    code = PROGRAM.replace("{level}", level).replace("{format}", form)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    return done.stderr


def test_json_lines() -> None:
    text = run("info", "json")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == [
        "hello",
        "inside",
        "no message",
        "from a library",
        "from a thread",
        "failed",
    ]
    assert all(line["process"] == "prefill-0" and line["timestamp"].endswith("Z") for line in lines)
    assert [line.get("request_id") for line in lines] == [None, "r-1", None, None, None, None]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "warning", "info", "error"]
    assert "ZeroDivisionError" in json.dumps(lines[-1])
    assert "the prompt" not in text


def test_console_lines_and_levels() -> None:
    text = run("debug", "console")
    assert "detail" in text
    assert "request_id=r-1" in text
    assert "the prompt" not in text.replace('secret = "the prompt"', "")
    assert "hello" not in run("warning", "console")


def test_on_a_terminal_lines_are_short_and_clear_the_spinner() -> None:
    terminal, inner = pty.openpty()
    try:
        code = PROGRAM.replace("{level}", "info").replace("{format}", "console")
        subprocess.run([sys.executable, "-c", code], stderr=inner, check=True, timeout=60)
        text = os.read(terminal, 65536).decode()
    finally:
        os.close(terminal)
        os.close(inner)
    first = text.split("\n")[0]
    assert first.startswith("\r\x1b[2K")
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", first).strip()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[info\] hello +n=1 process=prefill-0", plain)
