"""From the published peak rates of a device and the shape of a model to a node's profile.

    prefill   max(arithmetic, memory) + all-reduces + overhead, arithmetic = (2 P n + 4 L H d pairs) / FLOP/s
    decode    the same, where memory = (weights + KV of the batch) / bandwidth dominates
    transfer  bytes / NIC rate

P: parameters that a token meets, n: tokens, L: layers, H x d: query heads x head size.

Of `tp` devices each holds a part of every matrix and of the heads (Shoeybi et al., Megatron-LM,
arXiv:1909.08053): weights, KV and arithmetic are divided by `tp`, and each layer sums its activations over
the devices twice (`sim.cost.AllReduces`). Where there are more devices than KV heads several hold the same
head, so that KV is divided by the number of heads and no further; a device's NIC moves the KV it holds, of
each head once.

How much of a peak is attained is an assumption, the same for all devices and degrees: it moves times, not
comparisons. A device's part of a product is taken to be as efficient as the whole; small parts are less so,
which makes decode with high degrees look somewhat too good.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton.sim.cost import AllReduces, RooflineCost
from baton.sim.spec import Profile

PRODUCT_SHARE = 0.6  # of peak FLOP/s that large products reach
MEMORY_SHARE = 0.8  # of peak bandwidth that reading weights and KV reaches
LINK_SHARE = 0.8  # of NVLink and of the NIC
POOL_SHARE = 0.9  # of memory for weights and KV together
OVERHEAD_S = 0.0005  # of a step: host work, sampling
WRITE_S = 1e-4  # of a KV write: the post, the completion, the word back
NOISE = 0.02
BLOCK_TOKENS = 64
DEVICE_ROWS = 256  # requests in a step, per device


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks, per second and direction. reduce_s: of a sum over NVLink, however small."""

    name: str
    bf16_flops: float
    memory_bytes: float
    memory_bytes_s: float
    nvlink_bytes_s: float
    nic_bytes_s: float
    reduce_s: float


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
    """A node of `tp` devices. ValueError: the heads cannot be split so, or memory is too small."""
    held = _held_kv_bytes(model, tp)
    weights = model.parameters * model.bytes
    pool_bytes = POOL_SHARE * device.memory_bytes * tp - weights
    blocks = int(pool_bytes / (held * BLOCK_TOKENS))
    if blocks < model.max_model_len // BLOCK_TOKENS:
        raise ValueError(
            f"{tp} x {device.name} hold too little of {model.name}: {_memory(device, model, tp)}"
        )
    return Profile(
        name=f"{model.name}@{device.name}" + (f"x{tp}" if tp > 1 else ""),
        cost=RooflineCost(
            flops=PRODUCT_SHARE * device.bf16_flops * tp,
            bandwidth=MEMORY_SHARE * device.memory_bytes_s * tp,
            overhead_s=OVERHEAD_S,
            parameters=model.parameters - model.embedding,
            weight_bytes=weights - model.embedding * model.bytes,
            pair_flops=4.0 * model.layers * model.heads * model.head_dim,
            kv_bytes=held,
            reduces=_reduces(device, model, tp) if tp > 1 else None,
        ),
        kv_bytes_per_token=model.kv_bytes_per_token,
        num_blocks=blocks + 1,
        nic_bytes_s=LINK_SHARE * device.nic_bytes_s * min(tp, model.kv_heads),
        write_s=WRITE_S,
        block_size=BLOCK_TOKENS,
        max_model_len=model.max_model_len,
        max_running=DEVICE_ROWS * tp,
        noise=NOISE,
        gpus=tp,
    )


def _held_kv_bytes(model: ModelShape, tp: int) -> int:
    """Per token, on all devices together."""
    if tp < 1 or model.heads % tp:
        raise ValueError(f"{model.heads} heads of {model.name} cannot be split over {tp} devices")
    if model.kv_heads % tp and tp % model.kv_heads:
        raise ValueError(f"{model.kv_heads} KV heads of {model.name} cannot be split over {tp} devices")
    return model.kv_bytes_per_token * max(1, tp // model.kv_heads)


def _memory(device: Device, model: ModelShape, tp: int) -> str:
    weights = model.parameters * model.bytes / tp
    context = model.max_model_len * _held_kv_bytes(model, tp) / tp
    usable = POOL_SHARE * device.memory_bytes
    return (
        f"{weights / 1e9:.3g} GB of weights and {context / 1e9:.3g} GB of KV for {model.max_model_len:,} "
        f"tokens on each, where {usable / 1e9:.3g} GB are usable"
    )


def _reduces(device: Device, model: ModelShape, tp: int) -> AllReduces:
    return AllReduces(
        count=2 * model.layers,
        devices=tp,
        token_bytes=float(model.hidden * model.bytes),
        bandwidth=LINK_SHARE * device.nvlink_bytes_s,
        latency_s=device.reduce_s,
    )
