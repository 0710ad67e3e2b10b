"""A router tokenizes for its nodes: one whose model has another vocabulary is not let in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from baton.core.errors import BatonError
from baton.core.load import Role
from baton.engine.weights.vocabulary import tokenizer_digest
from tests.e2e.cluster import config, eventually
from tests.e2e.inprocess import inprocess
from tests.models import write_model


async def test_a_node_with_another_tokenizer_is_refused_with_the_item(tmp_path: Path) -> None:
    """Though it is the first to come, and its weights are the very same."""
    mine, theirs = write_model(tmp_path / "mine", "T", seed=0), tmp_path / "theirs"
    shutil.copytree(mine, theirs)
    tokenizer = theirs / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|im_end|>", "<|im_fin|>"))
    items = f"tokenizer ({tokenizer_digest(theirs)} against {tokenizer_digest(mine)})"
    async with inprocess(config(mine, prefill=0, decode=0, both=0, router={})) as cluster:
        await cluster.add(config(theirs, prefill=0, decode=0, both=1), Role.BOTH)

        async def told() -> str:
            with pytest.raises(BatonError) as caught:
                await cluster.client.generate([5, 6, 7], max_tokens=1, timeout_s=5)
            return "" if items in str(caught.value) else str(caught.value)

        await eventually(told, 30)
        assert not cluster.router.membership.members
        await cluster.add(config(mine, prefill=0, decode=0, both=2), Role.BOTH, 1)
        await cluster.up("both-1")
        answer = await cluster.client.generate([5, 6, 7], max_tokens=2, timeout_s=10)
        assert len(answer.token_ids) == 2
