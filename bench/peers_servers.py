"""Baton and its peers as servers that a load generator can talk to, one of them running at a time."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from baton.bench.load.generator import Limits, fire
from baton.bench.load.one_run import PING
from baton.bench.load.plan import Plan, token_writer
from baton.bench.load.plan import shots as planned
from baton.bench.load.record import Outcome
from baton.bench.load.target import Options, Target
from baton.bench.load.targets import parse_target
from baton.bench.peers import CHILDREN, vllm_environment
from baton.bench.peers_prepare import python_of, weights
from baton.core.errors import BatonError, Unavailable
from baton.sim.results import NO_SLO

READY_S = 600.0  # vLLM compiles
STOP_S = 20.0
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 64
VOCABULARY = 49_000
AT_ONCE = 32  # requests that a peer computes together


@dataclass(frozen=True, slots=True)
class Server:
    """command: with {port} where the port belongs. ours: Baton, which is told of the targets and so has to
    be asked once for each. says: what its output holds once it is ready; "": an answer says enough."""

    name: str
    command: list[str]
    scheme: str = "http"
    says: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.scheme == "grpc"


def servers(folder: Path, threads: int) -> list[Server]:
    """Baton's deployments, and those peers that are there."""
    baton = [sys.executable, "-m", "baton.cli.main", "serve", "--json", "--port", "{port}"]
    baton += ["--quantization", "int8-w8a8", "--kv-dtype", "int8"]
    found = []
    for name, prefill, decode, both in (("both", 0, 0, 1), ("2 both", 0, 0, 2), ("1P1D", 1, 1, 0)):
        each = max(1, threads // (prefill + decode + both))
        nodes = ["--prefill", str(prefill), "--decode", str(decode), "--both", str(both)]
        command = [*baton, *nodes, "--set", f"engine.threads={each}"]
        found.append(Server(f"Baton {name}", command, "grpc", '"endpoint"'))
    for precision in ("int8", "fp32"):
        command = [
            str(python_of(folder, "openvino")),
            str(CHILDREN / "openvino_server.py"),
            str(weights(folder, f"openvino-{precision}")),
            str(threads),
            "64" if precision == "int8" else "0",
            "{port}",
        ]
        found.append(Server(f"OpenVINO {precision}", command))
    for kind in ("Q8_0", "F16", "Q4_0"):
        found.append(Server(f"llama.cpp {kind}", _llama(folder, kind, threads)))
    vllm = [str(folder / "vllm/bin/vllm"), "serve", str(weights(folder, "hf")), "--dtype", "float32"]
    vllm += ["--max-model-len", "2304", "--no-enable-prefix-caching", "--port", "{port}"]
    found.append(Server("vLLM fp32", vllm, environment=vllm_environment(folder, threads)))
    return [server for server in found if Path(server.command[0]).exists()]


def _llama(folder: Path, kind: str, threads: int) -> list[str]:
    """Its defaults, but for a slot for each request and no second copy of prompts in memory."""
    context = AT_ONCE * 2 * (PROMPT_TOKENS + OUTPUT_TOKENS)
    command = [str(folder / "llama-server/bin/llama-server"), "-m", str(weights(folder, f"{kind}.gguf"))]
    command += ["-t", str(threads), "-tb", str(threads), "-np", str(AT_ONCE), "-c", str(context)]
    return [*command, "--cache-ram", "0", "--no-cache-prompt", "--host", "127.0.0.1", "--port", "{port}"]


class Running:
    """A server's processes. Stopped ones (SIGSTOP) keep their memory and take no time."""

    def __init__(self, server: Server, log: Path) -> None:
        self.server = server
        self._log = log
        port = free_port()
        command = [part.format(port=port) for part in server.command]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONSAFEPATH": "1"} | server.environment,  # see peers.Child
                start_new_session=True,
            )
        url = f"{server.name}={server.scheme}://127.0.0.1:{port}"
        self.target: Target = parse_target(url, Options())

    async def ready(self) -> None:
        """Unavailable: it ended, or took too long."""
        deadline = time.monotonic() + READY_S
        while not (self.server.says in self._log.read_text(errors="replace") and await self._answers()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"{self.server.name} does not answer: see {self._log}")
            await asyncio.sleep(0.5)

    async def _answers(self) -> bool:
        try:
            await self.target.open()
        except (BatonError, TimeoutError):
            return False
        ping = planned([PING], token_writer(VOCABULARY), 0, NO_SLO)
        log = await fire(self.target, Plan(ping, 0.0, 1.0), Limits(60.0, 60.0))
        if log.records[0].outcome is Outcome.OK:
            return True
        await self.target.close()
        return False

    def pause(self) -> None:
        for process in self._tree():
            process.suspend()

    def resume(self) -> None:
        for process in self._tree():
            process.resume()

    def pids(self) -> list[int]:
        return [process.pid for process in self._tree()]

    def close(self) -> None:
        """Ends all of its processes, gently at first."""
        tree = self._tree()
        self.resume()
        self._process.terminate()
        _, left = psutil.wait_procs(tree, timeout=STOP_S)
        for process in left:
            process.kill()
        self._process.wait()

    def _tree(self) -> list[psutil.Process]:
        if self._process.poll() is not None:
            return []
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
