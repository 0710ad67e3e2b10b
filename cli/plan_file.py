"""A plan as a deployment's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from baton.core.request import Slo
from baton.runtime.config import load_config
from baton.sim.experiments.plan import Plan
from baton.sim.report.scale import number
from baton.sim.spec import Profile

HOST_DEVICES = 8  # of the reference systems in sim/data/gpus.yaml


def deployment(plan: Plan, slo: Slo, model: str | None) -> dict[str, Any]:
    """Sections and keys of runtime.config. Of nodes that are alike, roles change by themselves from what the
    plan begins with."""
    layout = plan.best.layout
    targets = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s}
    sections, device = {}, 0
    for count, role, kind in layout.pools:
        sections[role] = _pool(count, kind, device)
        device += round(count * kind.gpus)
    return {
        "model": model or f"/path/to/{_model_of(layout.prefill)}",
        "router": {
            "slo": {name: value for name, value in targets.items() if value is not None},
            "admission": {"policy": plan.best.admission},
            "planner": {"enabled": layout.decode is None},
        },
        **sections,
    }


def opening(plan: Plan, model: str | None, command: str) -> list[str]:
    """The file's first comment: what it holds, from where, and what is still to be done before it serves."""
    best = plan.best
    kinds = [kind for _, _, kind in best.layout.pools]
    words = [
        f"{best.layout}: {number(best.rate)} requests/s, {number(best.per_device)} per device, simulated."
    ]
    if best.layout.decode is not None:
        words.append("Roles stay as they are: nodes of different kinds do not stand in for each other.")
    if model is None:
        words.append(f"TODO: `model` is a placeholder for the folder that holds {_model_of(kinds[0])}.")
    if any(kind.gpus > 1 for kind in kinds):
        words.append("tensor_parallel above 1 is planned for but not served yet: `baton serve` takes 1 only.")
    if any(_on_gpu(kind) for kind in kinds):
        words.append(
            "GPU devices are planned for but not served yet: `baton serve` takes devices: [cpu] only."
        )
    if best.layout.devices > HOST_DEVICES and _on_gpu(kinds[0]):
        words.append(
            "The devices are numbered as if they were of one host: give each host a file with its own."
        )
    return [*words, command] if command else words


def _model_of(kind: Profile) -> str:
    return kind.name.partition("@")[0]


def _on_gpu(kind: Profile) -> bool:
    return "@" in kind.name


def _pool(count: int, kind: Profile, first: int) -> dict[str, Any]:
    """first: of the devices that the pool's nodes get, one after another."""
    degree = round(kind.gpus)
    devices = [f"cuda:{first + i}" for i in range(count * degree)] if _on_gpu(kind) else ["cpu"]
    return {
        "count": count,
        "devices": devices,
        **({"tensor_parallel": degree} if degree > 1 else {}),
        "engine": {
            "block_size": kind.block_size,
            "num_blocks": kind.num_blocks,
            "max_model_len": kind.max_model_len,
            "max_batch_tokens": kind.max_batch_tokens,
            "chunk_tokens": kind.chunk_tokens,
            "max_running": kind.max_running,
        },
    }


def write_checked(path: Path, content: dict[str, Any], words: Sequence[str]) -> None:
    """Nothing is written that is no deployment's file. ConfigError: it would be."""
    comment = "".join(f"# {line}\n" for line in words)
    text = comment + yaml.safe_dump(content, sort_keys=False)
    with TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        trial.write_text(text, encoding="utf-8")
        load_config(trial)
    path.write_text(text, encoding="utf-8")
