"""Baton's own OpenAI front, measured as any other server."""

from __future__ import annotations

import pytest

from baton.bench.load.generator import Limits, fire
from baton.bench.load.plan import Plan, Prompt, shots
from baton.bench.load.record import Outcome
from baton.bench.load.target import Options
from baton.bench.load.targets import parse_target
from baton.core.request import Slo
from baton.router.http.server import HttpOptions
from baton.router.machine_config import RouterConfig
from baton.sim.workload.arrival import Arrival
from tests.fakes import StubConfig, StubNode, router_with, spell

SLO = Slo(ttft_s=5.0, tpot_s=1.0)
TEXT = "some words that a model might say"


def node(**config: object) -> StubNode:
    return StubNode(config=StubConfig(script=lambda r: spell(TEXT)[: r.max_tokens], **config))  # type: ignore[arg-type]


def plan(count: int = 1) -> Plan:
    """All at once."""
    made = shots(
        [Arrival(0.0, 4, 6)] * count, lambda arrival, number: Prompt((100, 101, 102), "abc", 3), 0, SLO
    )
    return Plan(made, 0.0, 1.0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_latencies_tokens_and_targets_arrive(path: str) -> None:
    stub = node(prefill_s=0.1, step_s=0.02)
    async with router_with(stub, http=HttpOptions()) as cluster:
        target = parse_target(f"http://{cluster.app.http_address}{path}", Options())
        facts = await target.open()
        log = await fire(target, plan(), Limits(20.0, 20.0))
        await target.close()
        await cluster.all_idle()
    (record,) = log.records
    assert facts.model == "stub"
    assert record.outcome is Outcome.OK, record.error
    assert record.output_tokens == 6
    assert record.used_prompt_tokens == (3 if path == "/v1/completions" else len(b"user:abc\n") + 1)
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.1
    assert record.tpot_s is not None
    assert record.e2e_s is not None
    assert record.e2e_s >= 0.1 + 5 * 0.02
    assert (stub.received[0].slo, stub.received[0].sampling.ignore_eos) == (SLO, True)


async def test_a_full_queue_is_a_rejection_by_both_doors() -> None:
    stub = node(prefill_s=0.5, max_running=1)
    machine = RouterConfig(max_queued=1, max_node_requests=1, decode_slack=0)
    async with router_with(stub, http=HttpOptions(), machine=machine) as cluster:
        for url in (f"http://{cluster.app.http_address}", f"grpc://{cluster.app.address}"):
            target = parse_target(url, Options())
            await target.open()
            log = await fire(target, plan(6), Limits(20.0, 20.0))
            await target.close()
            outcomes = [record.outcome for record in log.records]
            assert set(outcomes) == {Outcome.OK, Outcome.REJECTED}
            shed = [record for record in log.records if record.outcome is Outcome.REJECTED]
            assert all(record.retry_after_s is not None and record.error for record in shed)
        await cluster.all_idle()
