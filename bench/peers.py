"""Baton's engine and the field's best on the same cores, the same weights and the same questions, in turn.

    .venv/bin/python -m baton.bench.peers --prepare    # once: environments, weights: many minutes
    .venv/bin/python -m baton.bench.peers              # the table; --json for the figures alone
    .venv/bin/python -m baton.bench.peers --isa avx2   # as on a machine without AVX-512

Each system is a child process in a virtual environment of its own (`peer_children/`). The questions go round:
every system answers the first, then every system the second, several rounds of all; the best of the rounds
counts. So a machine that slows down slows all of them. Prefill: tokens of one prompt per second, to its first
token. Decode: tokens per second of all sequences together, 128 tokens of prompt each, then 64 new ones.

On a machine with other work --cpu-time compares one thread each by the time that their processes were given
(not vLLM, whose engine is another process).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from baton.bench.peers_prepare import python_of, ready, weights
from baton.runtime.cpus import usable_cpus

CHILDREN = Path(__file__).parent / "peer_children"
CONTEXT, STEPS = 128, 64
Question = tuple[str, dict[str, Any], int]  # its name, what a child is asked, the tokens that it takes
QUESTIONS: tuple[Question, ...] = (
    ("prefill 128", {"run": "prefill", "tokens": 128}, 128),
    ("prefill 512", {"run": "prefill", "tokens": 512}, 512),
    ("prefill 2048", {"run": "prefill", "tokens": 2048}, 2048),
    ("decode 1", {"run": "decode", "rows": 1, "context": CONTEXT, "steps": STEPS}, STEPS),
    ("decode 8", {"run": "decode", "rows": 8, "context": CONTEXT, "steps": STEPS}, 8 * STEPS),
    ("decode 32", {"run": "decode", "rows": 32, "context": CONTEXT, "steps": STEPS}, 32 * STEPS),
)
BATON = {  # quantization, kv_dtype; OpenVINO holds KV in 8 bits unless told otherwise
    "fp32": ("none", "auto"),
    "int8-w8a8": ("int8-w8a8", "auto"),
    "int8-w8a8, INT8 KV": ("int8-w8a8", "int8"),
    "int4-w4a8": ("int4-w4a8", "auto"),
    "GGUF as it is": ("auto", "auto"),
}
# What keeps each of them from instructions beyond AVX2: ours, oneDNN (OpenVINO's and vLLM's), MKL, torch.
# llama.cpp chooses when it is built: see peers_prepare. OpenVINO's other kernels ask the machine.
_AVX2 = {
    "BATON_CPU_ISA": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


@dataclass(frozen=True, slots=True)
class System:
    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def systems(folder: Path, threads: int, isa: str | None = None) -> list[System]:
    """Ours, and those peers whose environment is there. isa: "avx2": with nothing beyond it."""
    llama = python_of(folder, "llama" if isa is None else f"llama-{isa}")
    child = CHILDREN / "baton_engine.py"
    found = [
        System(f"Baton {name}", [sys.executable, str(child), "demo", str(threads), *formats])
        for name, formats in BATON.items()
    ]
    for kind in ("F32", "F16", "Q8_0", "Q4_0"):
        file = weights(folder, f"{kind}.gguf")
        command = [str(llama), str(CHILDREN / "llama_cpp.py"), str(file), str(threads)]
        found.append(System(f"llama.cpp {kind}", command))
    for precision in ("fp32", "int8"):
        model = weights(folder, f"openvino-{precision}")
        script = CHILDREN / "openvino_genai.py"
        group = "64" if precision == "int8" and isa is None else "0"  # rounding them takes VNNI
        command = [str(python_of(folder, "openvino")), str(script), str(model), str(threads), group]
        found.append(System(f"OpenVINO {precision}", command))
    command = [str(python_of(folder, "vllm")), str(CHILDREN / "vllm_cpu.py"), str(weights(folder, "hf"))]
    found.append(System("vLLM fp32", command, vllm_environment(folder, threads)))
    limits = {} if isa is None else _AVX2
    return [
        replace(system, environment=system.environment | limits)
        for system in found
        if Path(system.command[0]).exists()
    ]


def vllm_environment(folder: Path, threads: int) -> dict[str, str]:
    """As its documentation asks for on CPUs: tcmalloc and Intel's OpenMP preloaded, threads bound."""
    libraries = [*Path("/usr/lib").rglob("libtcmalloc_minimal.so.4"), *(folder / "vllm").rglob("libiomp5.so")]
    return {
        "LD_PRELOAD": ":".join(str(path) for path in libraries),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }


class Child:
    """A system that answers questions. RuntimeError: it ended instead."""

    def __init__(self, system: System, log: Path) -> None:
        self.name = system.name
        self.best: dict[str, float] = {}
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                system.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # A child's own folder is no place to import from: openvino_genai.py lies there.
                env=os.environ | {"PYTHONSAFEPATH": "1"} | system.environment,
                text=True,
                start_new_session=True,  # vLLM's engine is a process of its own
            )
        self._read()

    def ask(self, question: dict[str, Any]) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # anything else is chatter
                return dict(json.loads(line))
        self._process.wait()
        raise RuntimeError(f"{self.name} ended: see {self._log}")


def measure(children: list[Child], questions: Sequence[Question], rounds: int) -> None:
    """Fills each child's `best`: tokens per second by question."""
    for turn in range(rounds + 1):
        for name, question, tokens in questions:
            for child in children:
                rate = tokens / child.ask(question)
                if turn:  # the first warms up
                    child.best[name] = max(rate, child.best.get(name, 0.0))


def table(children: list[Child], questions: Sequence[Question], isa: str | None) -> Table:
    cores = "1 thread, by processor time" if "PEERS_CPU_TIME" in os.environ else f"{usable_cpus()} cores"
    shown = Table(title=f"tokens/s on {cores}{f', {isa}' if isa else ''}, SmolLM2-135M")
    shown.add_column("")
    for name, _, _ in questions:
        shown.add_column(name, justify="right")
    for child in children:
        shown.add_row(child.name, *(f"{child.best[name]:,.0f}" for name, _, _ in questions))
    ratios = []
    for name, _, _ in questions:
        ours = [c.best[name] for c in children if c.name.startswith("Baton")]
        theirs = [c.best[name] for c in children if not c.name.startswith("Baton")]
        ratios.append(f"{max(ours) / max(theirs):.2f}" if ours and theirs else "-")
    shown.add_section()
    shown.add_row("our best / best peer", *ratios)
    return shown


def _wanted(name: str, parts: str) -> bool:
    return not parts or any(part.lower() in name.lower() for part in parts.split(",") if part)


def main() -> None:
    parser = argparse.ArgumentParser(prog="baton.bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path.home() / ".cache/baton/peers", metavar="DIR")
    parser.add_argument("--prepare", action="store_true", help="make environments and weights, then measure")
    parser.add_argument("--only", default="", help="parts of systems' names, comma separated")
    parser.add_argument("--questions", default="", help="parts of questions' names, comma separated")
    parser.add_argument("--isa", choices=["avx2"], help="the most that any system may use")
    parser.add_argument("--cpu-time", action="store_true", help="one thread each, by its processor's time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.prepare:
        ready(options.dir, options.isa)
    if options.cpu_time:
        os.environ["PEERS_CPU_TIME"] = "1"
    found = systems(options.dir, 1 if options.cpu_time else usable_cpus(), options.isa)
    chosen = [system for system in found if _wanted(system.name, options.only)]
    if not chosen:
        print(f"none of {', '.join(system.name for system in found)} was asked for", file=sys.stderr)
        return
    questions = [question for question in QUESTIONS if _wanted(question[0], options.questions)]
    children: list[Child] = []
    try:
        for system in chosen:
            children.append(Child(system, options.dir / f"{system.name.replace(' ', '-')}.log"))
        measure(children, questions, options.rounds)
        if options.json:
            print(json.dumps({child.name: child.best for child in children}, indent=1))
        else:
            Console(width=140).print(table(children, questions, options.isa))
    finally:
        for child in children:
            child.close()


if __name__ == "__main__":
    main()
