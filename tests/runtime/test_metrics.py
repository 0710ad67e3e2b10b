"""Names that dashboards rely on; durations that make sense or are left out."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client import generate_latest

from baton.core.load import LoadReport, Role
from baton.runtime.metrics import NodeMetrics, RequestFigures, RouterMetrics

ROUTER_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_bucket",
    "vllm:request_prefill_time_seconds_bucket",
    "vllm:request_decode_time_seconds_bucket",
    "vllm:request_success_total",
    "baton_request_transfer_time_seconds_bucket",
    "baton_requests_rejected_total",
    "baton_request_retries_total",
    "baton_prediction_error_seconds_bucket",
    "baton_nodes",
}
NODE_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "baton_role",
    "baton_leases",
    "baton_orphaned_blocks",
    "baton_transfer_bytes_total",
    "baton_transfer_seconds_bucket",
    "baton_step_seconds_bucket",
}


def samples(metrics: RouterMetrics | NodeMetrics) -> dict[str, float]:
    """`name{labels}` -> value, the model's label left out."""
    result = {}
    for line in generate_latest(metrics.registry).decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")
            result[name] = float(value)
    return result


def names(found: dict[str, float]) -> set[str]:
    return {name.partition("{")[0] for name in found}


def ended(**changes: object) -> RequestFigures:
    fields: dict[str, object] = {"reason": "stop", "prompt_tokens": 5, "output_tokens": 2, "total_s": 0.5}
    return RequestFigures(**(fields | changes))  # type: ignore[arg-type]


def test_router_names() -> None:
    metrics = RouterMetrics("m")
    metrics.request_ended(
        ended(queue_s=0.0, prefill_s=0.1, transfer_s=0.1, decode_s=0.3, ttft_s=0.1, tpot_s=0.1)
    )
    metrics.request_rejected("RESOURCE_EXHAUSTED")
    metrics.predicted("prefill", 0.2, 0.1)
    metrics.set_nodes({("prefill", "up"): 1})
    found = samples(metrics)
    assert names(found) >= ROUTER_NAMES
    assert found['vllm:request_success_total{finished_reason="stop"}'] == 1
    assert found['baton_nodes{role="prefill",state="up"}'] == 1


def test_a_node_has_one_role_and_changes_are_counted() -> None:
    metrics = RouterMetrics("m")
    metrics.set_roles({"a": "prefill", "b": "decode"})
    metrics.role_changed("prefill", "both")
    metrics.set_roles({"a": "both"})
    found = {
        name: value for name, value in samples(metrics).items() if "role" in name and "created" not in name
    }
    assert found == {
        'baton_node_role{node="a",role="both"}': 1,
        'baton_role_changes_total{new="both",old="prefill"}': 1,
    }


@pytest.mark.parametrize("kind", [RouterMetrics, NodeMetrics])
def test_rpcs_are_counted_by_method_and_code(kind: type[RouterMetrics] | type[NodeMetrics]) -> None:
    metrics = kind("m")
    for code in ("OK", "OK", "UNAVAILABLE"):
        metrics.rpc("baton.v1.Admin/GetCluster", code)
    found = samples(metrics)
    assert found['baton_rpcs_total{code="OK",method="baton.v1.Admin/GetCluster"}'] == 2
    assert found['baton_rpcs_total{code="UNAVAILABLE",method="baton.v1.Admin/GetCluster"}'] == 1


def test_node_names() -> None:
    metrics = NodeMetrics("m")
    metrics.load(LoadReport(seq=1, role=Role.DECODE, running=3, waiting=2, blocks_total=10, blocks_free=4))
    metrics.prefix_lookup(17, 16)
    metrics.step("decode", 0.001, 3)
    metrics.transferred("shm", 4096, 0.001)
    found = samples(metrics)
    assert names(found) >= NODE_NAMES
    assert found["vllm:kv_cache_usage_perc"] == pytest.approx(0.6)
    assert found['baton_role{role="decode"}'] == 1
    assert found['baton_role{role="prefill"}'] == 0


@pytest.mark.parametrize("output_tokens", [0, 1])
def test_fewer_than_two_tokens_give_no_time_per_token(output_tokens: int) -> None:
    metrics = RouterMetrics("m")
    metrics.request_ended(
        ended(output_tokens=output_tokens, tpot_s=0.0, ttft_s=None if output_tokens == 0 else 0.1)
    )
    found = samples(metrics)
    assert found["vllm:request_time_per_output_token_seconds_count"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == output_tokens
    assert found["vllm:e2e_request_latency_seconds_count"] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.001])
def test_what_is_no_duration_is_counted_and_left_out(bad: float) -> None:
    metrics = RouterMetrics("m")
    metrics.request_ended(ended(total_s=bad, ttft_s=bad))
    metrics.tokens_delivered(2, bad)
    found = samples(metrics)
    assert found["baton_bad_measurements_total"] == 3
    assert found["vllm:e2e_request_latency_seconds_count"] == 0
    assert not any(math.isnan(value) for value in found.values())


def test_tokens_that_come_together_share_their_interval() -> None:
    metrics = RouterMetrics("m")
    metrics.tokens_delivered(1, None)
    metrics.tokens_delivered(3, 0.03)
    found = samples(metrics)
    assert found["vllm:inter_token_latency_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.03)
    assert found['vllm:inter_token_latency_seconds_bucket{le="0.0075"}'] == 0
    assert found["vllm:generation_tokens_total"] == 4


def test_an_empty_registry_has_no_nan() -> None:
    for metrics in (RouterMetrics("m"), NodeMetrics("m")):
        assert not any(math.isnan(value) or value < 0 for value in samples(metrics).values())
    metrics = NodeMetrics("m")
    metrics.load(LoadReport(seq=1, role=Role.BOTH))
    assert samples(metrics)["vllm:kv_cache_usage_perc"] == 0


def test_buckets_tell_a_millisecond_per_token_from_its_neighbours() -> None:
    metrics = RouterMetrics("m")
    bounds = [float(m[1]) for n in samples(metrics) if (m := re.match(r'vllm:inter_token.*le="([\d.]+)"', n))]
    near = [b for b in bounds if 0.0007 < b < 0.0013]
    assert len(near) >= 3
