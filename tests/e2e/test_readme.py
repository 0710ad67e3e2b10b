"""What the README and the description of the APIs tell one to do, done: commands and Python as they stand."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
BATON = str(Path(sys.executable).with_name("baton"))


def block(language: str, holding: str, document: str = README) -> str:
    """The one fenced block of a language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    (found,) = [text for text in blocks if holding in text]
    return found


@dataclass(frozen=True)
class Ports:
    """Those that are free here, in place of those that stand there."""

    grpc: int
    http: int

    def put(self, text: str) -> str:
        free = {"8000": str(self.grpc), "8080": str(self.http)}
        return re.sub("|".join(free), lambda found: free[found[0]], text)


def argv(command: str, ports: Ports) -> list[str]:
    words = shlex.split(ports.put(command.partition("#")[0]))
    assert words[0] == ".venv/bin/baton"
    return [BATON, *words[1:]]


@pytest.fixture(scope="module")
def ports() -> Ports:
    return Ports(free_port(), free_port())


@pytest.fixture(scope="module")
def commands() -> list[str]:
    return [line for line in block("", "baton serve").splitlines() if line]


@pytest.fixture(scope="module")
def served(ports: Ports, commands: list[str]) -> Iterator[None]:
    (command,) = [line for line in commands if "baton serve" in line]
    server = subprocess.Popen(
        argv(command, ports), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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


def test_the_commands_answer(served: None, ports: Ports, commands: list[str]) -> None:
    (command,) = [line for line in commands if "baton generate" in line]
    run = [*argv(command, ports), "--max-tokens", "8", "--endpoint", f"127.0.0.1:{ports.grpc}"]
    answer = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip()


@pytest.mark.parametrize("document", [README, API], ids=["README", "api"])
@pytest.mark.parametrize("holding", ["baton.Client", "OpenAI"])
def test_the_python_runs(served: None, ports: Ports, document: str, holding: str) -> None:
    code = ports.put(block("python", holding, document))
    run = [sys.executable, "-W", "error", "-c", code]
    answer = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert len(answer.stdout) > 40


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("document", [README, API], ids=["README", "api"])
def test_curl_gets_answers(served: None, ports: Ports, document: str) -> None:
    for command in re.split(r"\n(?=curl)", ports.put(block("bash", "curl", document)).strip()):
        answer = subprocess.run(
            [*shlex.split(command), "--silent", "--show-error", "--fail-with-body"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert '"choices":[{' in answer.stdout


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
