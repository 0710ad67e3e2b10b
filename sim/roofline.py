"""From the published peak rates of a device and the shape of a model to a node's profile.

    prefill   max(arithmetic, memory) + all-reduces + overhead, arithmetic = (2 P n + 4 L H d pairs) / FLOP/s
    decode    the same, where memory = (weights + KV of the batch) / bandwidth dominates
    transfer  bytes / NIC rate

P: parameters that a token meets, n: tokens, L: layers, H x d: query heads x head size. With `tp` devices
weights, KV and arithmetic are split evenly, and each layer reduces its activations twice, over a ring
(Patarasuk and Yuan, JPDC 69(2), 2009): 2 (tp - 1) / tp of their bytes per device and direction.

How much of a peak is attained is an assumption, the same for all devices: it moves times, not comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton.sim.cost import RooflineCost
from baton.sim.spec import Profile

PRODUCT_SHARE = 0.6  # of peak FLOP/s that large products reach
MEMORY_SHARE = 0.8  # of peak bandwidth that reading weights and KV reaches
LINK_SHARE = 0.8  # of NVLink and of the NIC
POOL_SHARE = 0.9  # of memory for weights and KV together
OVERHEAD_S = 0.0005  # of a step: host work, sampling
REDUCE_S = 8e-6  # of an all-reduce, however small
WRITE_S = 1e-4  # of a KV write: the post, the completion, the word back
NOISE = 0.02
BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks, per second and direction."""

    name: str
    bf16_flops: float
    memory_bytes: float
    memory_bytes_s: float
    nvlink_bytes_s: float
    nic_bytes_s: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """bytes: per parameter and per KV element."""

    name: str
    parameters: float
    embedding: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bytes: int
    max_model_len: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes


def roofline(device: Device, model: ModelShape, tp: int = 1) -> Profile:
    """A node of `tp` devices. ValueError: the weights leave no room for KV."""
    weights = model.parameters * model.bytes
    pool_bytes = POOL_SHARE * device.memory_bytes * tp - weights
    blocks = int(pool_bytes / (model.kv_bytes_per_token * BLOCK_TOKENS))
    if blocks < model.max_model_len // BLOCK_TOKENS:
        raise ValueError(f"{tp} x {device.name} hold too little of {model.name}")
    return Profile(
        name=f"{model.name}@{device.name}" + (f"x{tp}" if tp > 1 else ""),
        cost=RooflineCost(
            flops=PRODUCT_SHARE * device.bf16_flops * tp,
            bandwidth=MEMORY_SHARE * device.memory_bytes_s * tp,
            overhead_s=OVERHEAD_S + _latency_s(model, tp),
            parameters=model.parameters - model.embedding,
            weight_bytes=weights - model.embedding * model.bytes,
            pair_flops=4.0 * model.layers * model.heads * model.head_dim,
            kv_bytes=model.kv_bytes_per_token,
            token_link_s=_reduced_bytes(model, tp) / (LINK_SHARE * device.nvlink_bytes_s),
        ),
        kv_bytes_per_token=model.kv_bytes_per_token,
        num_blocks=blocks + 1,
        nic_bytes_s=LINK_SHARE * device.nic_bytes_s * tp,
        write_s=WRITE_S,
        block_size=BLOCK_TOKENS,
        max_model_len=model.max_model_len,
        noise=NOISE,
        gpus=tp,
    )


def _latency_s(model: ModelShape, tp: int) -> float:
    """Latency of a step's all-reduces, two per layer."""
    return 2 * model.layers * REDUCE_S if tp > 1 else 0.0


def _reduced_bytes(model: ModelShape, tp: int) -> float:
    """Per token and device, of all layers' all-reduces."""
    return 2 * model.layers * model.hidden * model.bytes * 2 * (tp - 1) / tp
