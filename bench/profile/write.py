"""A node's profile as a file, in the form of `sim/data/measured.yaml`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from baton.bench.profile import fit
from baton.bench.profile.samples import Samples
from baton.core.errors import FailedPrecondition

DIGITS = 4
HEAD = """\
# A node as measured by `baton profile`. prefill: seconds per step, per new token, per (new token x token
# before it). decode: seconds of a step by rows. context_s: seconds per KV token that a decode step attends
# to. client_s: what the way between client and router adds, one way. beside: how many times as long steps
# take while another node of the host runs steps (1: as long as alone), by what they are and what that runs, a
# prompt or decode; by the rows of decode, and if both are, by their own. cores: of the host. threads: of a
# node's step. crowd: the same while as many nodes run at once.
"""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself. limits: fields of `sim.spec.Profile`. cores: of the host that nodes share;
    0: they do not. threads: that a node computes with."""

    name: str
    kv_bytes_per_token: int
    num_blocks: int
    limits: dict[str, int]
    source: str
    cores: int = 0
    threads: int = 1


def entry(samples: Samples, facts: NodeFacts) -> dict[str, Any]:
    """FailedPrecondition: too little was measured."""
    if not samples.prefill or not samples.decode:
        raise FailedPrecondition("too few measurements for a profile")
    fitted = fit.prefill(samples.prefill)
    by_rows, context_s = fit.decode(samples.decode)
    write_s, bytes_s = fit.transfer(samples.transfer)
    found: dict[str, Any] = {
        "name": facts.name,
        "prefill": [rounded(value) for value in fitted],
        "decode": {rows: rounded(step_s) for rows, step_s in by_rows.items()},
        "context_s": rounded(context_s),
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "pool_bytes": facts.num_blocks * facts.limits["block_size"] * facts.kv_bytes_per_token,
        "nic_bytes_s": rounded(bytes_s),
        "write_s": rounded(write_s),
        "limits": facts.limits,
        "noise": rounded(fit.noise(samples.prefill, fitted)),
        "client_s": rounded(fit.overhead_s(samples.prefill) / 2),
        "source": facts.source,
    }
    if facts.cores and (samples.prompt_beside or samples.decode_beside):
        measured = _rounded(fit.beside(samples, context_s))
        found["beside"] = {"cores": facts.cores, "threads": facts.threads, **measured}
        if crowd := _rounded(fit.crowd(samples, context_s)):
            found["beside"]["crowd"] = crowd
    return found


def _rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return rounded(found)


def write(path: Path, name: str, content: dict[str, Any]) -> None:
    body = yaml.safe_dump({name: content}, sort_keys=False, default_flow_style=None, width=110)
    path.write_text(HEAD + body, encoding="utf-8")


def client_s(path: Path) -> float:
    """What a file says of the way between client and router, one way; 0: nothing."""
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return float(next(iter(loaded.values())).get("client_s", 0.0))


def rounded(value: float) -> float:
    """To a few digits that count."""
    if value == 0 or not math.isfinite(value):
        return value
    return float(f"{value:.{DIGITS}g}")
