"""Nodes of several devices: what the roofline says of them, by hand and as published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.core.errors import InvalidArgument
from baton.sim.cost import AllReduces, RooflineCost, StepWork
from baton.sim.profiles import degrees, profile
from baton.sim.roofline import Device, ModelShape, roofline
from baton.sim.spec import Profile

LLAMA_70B_BYTES = 141.1e9  # 70.55e9 parameters in bfloat16
KV_BYTES = 327_680  # 2 x 80 layers x 8 heads x 128 x 2 bytes
H100_READ = 0.8 * 3.35e12
DEVICE = Device("d", 1e15, 80e9, 3e12, 450e9, 50e9, 6e-6)
MODEL = ModelShape("m", 8e9, 0.5e9, 32, 4096, 32, 8, 128, 2, 8192)


def step_s(kind: Profile, rows: int = 0, context: int = 0, prompt: int = 0) -> float:
    work = StepWork(prompt, prompt * prompt / 2, 1 if prompt else 0, rows, context)
    return kind.cost.step_s(work)


def test_70b_in_bf16_needs_two_h100() -> None:
    with pytest.raises(InvalidArgument, match="141 GB of weights"):
        profile("llama-3-70b@h100x1")
    two, four = profile("llama-3-70b@h100", 2), profile("llama-3-70b@h100", 4)
    for kind in (two, four):
        room = 0.9 * 80e9 * kind.gpus - LLAMA_70B_BYTES
        assert kind.num_blocks * kind.block_size == pytest.approx(room / KV_BYTES, rel=0.01)
    assert [kind.gpus for kind in degrees("llama-3-70b@h100").profiles] == [2, 4, 8]
    assert "1 x h100 hold too little" in degrees("llama-3-70b@h100").told[0]


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_a_decode_step_reads_its_part_of_the_weights_and_waits_for_160_sums(degree: int) -> None:
    read_s = (70.55e9 - 1.051e9) * 2 / (degree * H100_READ)
    kv_s = 1000 * KV_BYTES / (degree * H100_READ)
    sums_s = 160 * (6e-6 + (degree - 1) * 8192 * 2 / (0.8 * 450e9))
    found = step_s(profile("llama-3-70b@h100", degree), rows=1, context=1000)
    assert found == pytest.approx(read_s + kv_s + sums_s + 0.0005, rel=1e-6)


def test_a_higher_degree_is_faster_by_less_than_its_devices() -> None:
    four, eight = (profile("llama-3-70b@h100", degree) for degree in (4, 8))
    for work in ({"rows": 1, "context": 500}, {"rows": 64, "context": 64_000}, {"prompt": 2048}):
        assert 1.3 < step_s(four, **work) / step_s(eight, **work) < 1.9


def test_two_nodes_of_four_devices_compute_more_prompts_than_one_of_eight() -> None:
    """By 18 % were measured on H100s, Llama 3.3 70B in BF16, prompts of 2,048 tokens (ISC High Performance
    2026, poster on scale-up and scale-out for guardrails)."""
    four, eight = (step_s(profile("llama-3.1-70b@h100", degree), prompt=2048) for degree in (4, 8))
    assert 2 * eight / four == pytest.approx(1.18, abs=0.08)


@pytest.mark.parametrize(
    ("rows", "published_s"), [(32, 10e-6), (64, 14e-6), (96, 19e-6), (128, 21e-6), (192, 23e-6), (256, 28e-6)]
)
def test_all_reduces_take_what_was_measured(rows: int, published_s: float) -> None:
    """The best of vLLM's kernels over four GPUs, [rows, 8192] in bfloat16 (vllm-project/vllm, pull request
    24532)."""
    reduces = profile("llama-3-70b@h100", 4).cost
    assert isinstance(reduces, RooflineCost)
    assert reduces.reduces is not None
    assert reduces.reduces.step_s(rows) / reduces.reduces.count == pytest.approx(published_s, rel=0.1)


def test_small_sums_take_one_shot_and_large_ones_two() -> None:
    reduces = AllReduces(1, 8, token_bytes=1000.0, bandwidth=1e9, latency_s=1e-5)
    assert reduces.step_s(1) == pytest.approx(1e-5 + 7 * 1e-6)
    assert reduces.step_s(1000) == pytest.approx(2e-5 + 2 * 7 / 8 * 1e-3)
    assert AllReduces(3, 2, 1000.0, 1e9, 1e-5).step_s(1000) == pytest.approx(3 * (1e-5 + 1e-3))


def test_one_device_waits_for_nobody() -> None:
    one = roofline(DEVICE, MODEL, 1)
    slow = roofline(replace(DEVICE, reduce_s=1.0, nvlink_bytes_s=1.0), MODEL, 1)
    assert step_s(one, rows=3, context=900) == step_s(slow, rows=3, context=900)


def test_beyond_the_kv_heads_devices_hold_copies() -> None:
    heads = replace(MODEL, kv_heads=2)
    two, four, eight = (roofline(DEVICE, heads, degree) for degree in (2, 4, 8))
    room = [0.9 * 80e9 * degree - 16e9 for degree in (2, 4, 8)]
    per_token = 2 * 32 * 2 * 128 * 2
    for kind, bytes_, copies in zip((two, four, eight), room, (1, 2, 4), strict=True):
        assert kind.num_blocks * 64 == pytest.approx(bytes_ / (per_token * copies), rel=0.01)
        assert kind.kv_bytes_per_token == per_token, "is handed over once"
        assert kind.nic_bytes_s == pytest.approx(2 * 0.8 * 50e9), "a head leaves by one device"
    costs = [kind.cost for kind in (two, four, eight)]
    assert all(isinstance(cost, RooflineCost) for cost in costs)
    read_s = [cost.kv_bytes / cost.bandwidth for cost in costs if isinstance(cost, RooflineCost)]
    assert read_s == pytest.approx([read_s[0]] * 3), "each reads one head, however many read the same"


@pytest.mark.parametrize("degree", [0, 3, 5, 64])
def test_heads_are_not_cut(degree: int) -> None:
    with pytest.raises(ValueError, match=f"32 heads of m cannot be split over {degree} devices"):
        roofline(DEVICE, MODEL, degree)


def test_kv_heads_are_not_cut_either() -> None:
    with pytest.raises(ValueError, match="6 KV heads"):
        roofline(DEVICE, replace(MODEL, heads=24, kv_heads=6), 4)


def test_a_node_has_the_nics_and_the_rows_of_its_devices() -> None:
    one, four = profile("llama-3.1-8b@h100"), profile("llama-3.1-8b@h100x4")
    assert four.nic_bytes_s == 4 * one.nic_bytes_s
    assert four.max_running == 4 * one.max_running
    assert profile("llama-3-70b@h100x8", 2).gpus == 8, "what the name says goes first"


def test_a_measured_profile_has_degree_1_only() -> None:
    found = degrees("smollm2-cpu")
    assert [kind.gpus for kind in found.profiles] == [1]
    assert found.told == (
        "smollm2-cpu was measured on one device, so tensor parallelism is known of it at degree 1 only",
    )
    with pytest.raises(InvalidArgument, match="at degree 1 only, not 2"):
        profile("smollm2-cpu", 2)
    assert profile("smollm2-cpu", 1) == profile("smollm2-cpu")


def test_a_named_degree_stays_alone() -> None:
    assert [kind.name for kind in degrees("llama-3.1-8b@h100x2").profiles] == ["llama-3.1-8b@h100x2"]
    with pytest.raises(InvalidArgument, match="no profile"):
        degrees("llama-3.1-8b@abacus")
