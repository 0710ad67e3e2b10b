"""What the README tells a newcomer to do, done: its commands and its Python, as they stand there."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.runtime.ports import SharedPort

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BATON = str(Path(sys.executable).with_name("baton"))


def block(language: str, holding: str) -> str:
    """The one fenced block of a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if holding in text]
    return found


def argv(command: str, port: int) -> list[str]:
    words = shlex.split(command.partition("#")[0].replace("8000", str(port)))
    assert words[0] == ".venv/bin/baton"
    return [BATON, *words[1:]]


@pytest.fixture(scope="module")
def port() -> int:
    """Not 8000, which may be taken here."""
    shared = SharedPort("127.0.0.1", 0)
    shared.close()
    return shared.port


@pytest.fixture(scope="module")
def commands() -> list[str]:
    return [line for line in block("", "baton serve").splitlines() if line]


@pytest.fixture(scope="module")
def served(port: int, commands: list[str]) -> Iterator[None]:
    (command,) = [line for line in commands if "baton serve" in line]
    server = subprocess.Popen(
        argv(command, port), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if line.startswith("ready:"):
                break
        else:
            pytest.fail("the server ended before it was ready")
        yield
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=30)
    assert server.returncode in (0, 130)


def test_the_commands_answer(served: None, port: int, commands: list[str]) -> None:
    (command,) = [line for line in commands if "baton generate" in line]
    run = [*argv(command, port), "--max-tokens", "8", "--endpoint", f"127.0.0.1:{port}"]
    answer = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip()


def test_the_python_runs(served: None, port: int) -> None:
    code = block("python", "baton.Client").replace("8000", str(port))
    run = [sys.executable, "-W", "error", "-c", code]
    answer = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert len(answer.stdout) > 40


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
