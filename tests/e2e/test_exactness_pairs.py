"""Nodes that differ: where KV can be converted they work together exactly, else they are refused in time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from baton.core.errors import BatonError, FailedPrecondition
from baton.core.load import Role
from baton.runtime.client.types import Completion
from tests.e2e.cluster import config, eventually
from tests.e2e.exact import QUIET, Case, all_exact, exact, solid_case, tiny
from tests.e2e.inprocess import inprocess
from tests.models import Reference, write_model

REFUSED_WITHIN_S = 20.0  # on a busy machine; it is the refusal that is told, and no deadline
BFLOAT16_TOLERANCE = 0.3  # of a logprob

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "weights": ("weights", {"seed": 1}),
    "rope theta": (r"geometry.*rope", {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
    "head_dim": (r"geometry.*head_dim=24", {"head_dim": 24}),
    "layers": (r"geometry.*layers=3", {"num_hidden_layers": 3}),
    "kv heads": (r"geometry.*kv_heads=6", {"num_key_value_heads": 6}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    torch.set_num_threads(1)
    return tiny(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def case(model: tuple[Path, Reference]) -> Case:
    return solid_case(model[1], 21, 8)


@pytest.mark.parametrize("way", ["shm", "tcp"])
@pytest.mark.parametrize(("prefill", "decode"), [(4, 8), (8, 4), (3, 16), (16, 5)])
async def test_other_block_sizes_are_converted(
    prefill: int, decode: int, way: str, model: tuple[Path, Reference]
) -> None:
    cases = [solid_case(model[1], n, 8) for n in (1, 4, 8, 15, 33)]
    nodes = {
        "prefill_nodes": {"engine": {"block_size": prefill}},
        "decode_nodes": {"engine": {"block_size": decode}},
    }
    async with inprocess(config(model[0], **QUIET, **nodes, transfer={"kinds": (way,)})) as cluster:
        await all_exact(cluster, cases)
        await all_exact(cluster, cases)
        await cluster.settled()


@pytest.mark.parametrize("odd", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("what", OTHERS)
async def test_a_node_with_another_model_is_refused(
    what: str, odd: Role, model: tuple[Path, Reference], case: Case, tmp_path: Path
) -> None:
    """The item is named in both nodes' logs and in the client's error; with a node that fits all is well."""
    item, changes = OTHERS[what]
    other = write_model(tmp_path / "other", "T", **changes)
    counts = {Role.PREFILL: {"prefill": 0}, Role.DECODE: {"decode": 0}}
    good, bad = config(model[0], **QUIET, **counts[odd]), config(other, served_name="T", **QUIET)
    with structlog.testing.capture_logs() as logs:
        async with inprocess(good) as cluster:
            await cluster.add(bad, odd, index=7)

            async def not_logged() -> str:
                told = {str(entry.get("event")) for entry in logs if re.search(item, str(entry))}
                missing = {"a router refused this node", "cannot work with another node"} - told
                return f"nothing says {missing}" if missing else ""

            await eventually(not_logged, REFUSED_WITHIN_S)
            with pytest.raises(FailedPrecondition, match=item) as refused:
                await cluster.client.generate(case.prompt, max_tokens=4, timeout_s=REFUSED_WITHIN_S)
            assert f"{odd.value}-7" in str(refused.value)
            await cluster.add(config(model[0], **QUIET), odd)
            await cluster.up("prefill-0", "decode-0")
            answer = await exact(cluster, case)
            assert (answer.timings.prefill_node, answer.timings.decode_node) == ("prefill-0", "decode-0")
            await cluster.settled()


# The item, and the odd node's engine.
APART: list[tuple[str, dict[str, str]]] = [
    (r"quantization \(int8 against none\)", {"quantization": "int8"}),
    (r"quantization \(int8-w8a8 against none\)", {"quantization": "int8-w8a8"}),
    (r"dtype \(bfloat16 against float32\)", {"dtype": "bfloat16", "kv_dtype": "float32"}),
]


@pytest.mark.parametrize("odd", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize(("item", "engine"), APART)
async def test_a_node_with_other_arithmetic_is_refused(
    item: str, engine: dict[str, str], odd: Role, model: tuple[Path, Reference], case: Case
) -> None:
    """It would give other tokens for the same model. One that means the same by another word fits."""
    counts = {Role.PREFILL: {"prefill": 0}, Role.DECODE: {"decode": 0}}
    async with inprocess(config(model[0], **QUIET, **counts[odd])) as cluster:
        await cluster.add(config(model[0], **QUIET, engine=engine), odd, index=7)

        async def not_told() -> str:
            try:
                await cluster.client.generate(case.prompt, max_tokens=4, timeout_s=REFUSED_WITHIN_S)
            except FailedPrecondition as error:
                return "" if f"{odd.value}-7" in str(error) and re.search(item, str(error)) else str(error)
            except BatonError as error:  # it has not announced itself yet
                return str(error)
            raise AssertionError("it was served")

        await eventually(not_told, REFUSED_WITHIN_S)
        await cluster.add(config(model[0], **QUIET, engine={"quantization": "auto"}), odd)
        await cluster.up("prefill-0", "decode-0")
        await exact(cluster, case)
        await cluster.settled()


@pytest.mark.parametrize("half", [Role.PREFILL, Role.DECODE])
async def test_another_kv_type_is_converted(half: Role, model: tuple[Path, Reference], case: Case) -> None:
    """One side keeps KV in bfloat16, so the answer is not the reference's; but it is as likely as it says."""
    settings = {f"{half.value}_nodes": {"engine": {"kv_dtype": "bfloat16"}}}
    async with inprocess(config(model[0], **QUIET, **settings)) as cluster:
        answer = await cluster.client.generate(
            case.prompt, max_tokens=3, temperature=0.0, logprobs=0, ignore_eos=True
        )
        got = [one.logprob for one in answer.logprobs]
        assert got == pytest.approx(_dense(model[1], case.prompt, answer), abs=BFLOAT16_TOLERANCE)
        other = _dense(model[1], case.prompt[::-1], answer)
        assert max(abs(a - b) for a, b in zip(got, other, strict=True)) > 4 * BFLOAT16_TOLERANCE
        await cluster.settled()


def _dense(reference: Reference, prompt: list[int], answer: Completion) -> list[float]:
    """What the dense model gives the answer's tokens after a prompt."""
    rows = reference.logprobs([*prompt, *answer.token_ids])[len(prompt) - 1 :]
    return [float(row[i]) for row, i in zip(rows, answer.token_ids, strict=False)]
