"""What nodes tell a router of their load, over real streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch

from baton.core.load import LoadReport
from baton.router.nodes import Node
from tests.e2e.cluster import config, eventually
from tests.e2e.exact import QUIET, solid_case, tiny
from tests.e2e.faults import PATIENCE_S
from tests.e2e.inprocess import inprocess


async def test_each_prompt_is_named_once_by_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps and prompts there are between two reports."""
    torch.set_num_threads(1)
    model, reference = tiny(tmp_path)
    named: Counter[tuple[str, str]] = Counter()
    report = Node.report

    def watched(self: Node, load: LoadReport, now: float, lag_s: float) -> bool:
        named.update((self.id, name) for name in load.arrived)
        return report(self, load, now, lag_s)

    monkeypatch.setattr(Node, "report", watched)
    prompts = [solid_case(reference, 20 + i, 4).prompt for i in range(12)]
    async with inprocess(config(model, prefill=2, decode=1, **QUIET)) as cluster:
        answers = await asyncio.gather(
            *(cluster.client.generate(prompt, max_tokens=4, temperature=0.0) for prompt in prompts)
        )
        served = Counter(answer.timings.prefill_node for answer in answers)

        async def missing() -> str:
            told = Counter(node for node, _ in named)
            return "" if told == served else f"{told} of {served}"

        await eventually(missing, PATIENCE_S)
        await cluster.settled()
    assert set(named.values()) == {1}
