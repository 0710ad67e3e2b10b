"""Which implementation of every operation runs: chosen once, when a model is loaded.

native: the compiled CPU kernels. torch: plain torch, on any device. triton: on a GPU (or, to test it, on CPU
tensors under TRITON_INTERPRET=1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from baton.core.errors import InvalidArgument
from baton.kernels import native
from baton.kernels.attention import AttentionParams, AttentionPlan, KvLayer
from baton.kernels.linear import Prepare
from baton.kernels.logits import LogitEdits
from baton.kernels.logits import reference as host_logits
from baton.kernels.moe import ExpertMlp, Routing
from baton.kernels.rope import QkNorm, Rotation, Slots
from baton.kernels.sample import Choice, Survey
from baton.kernels.sample import cpu as host_sample


@dataclass(frozen=True, slots=True)
class Sampling:
    """From logits to tokens: `kernels.sample` and `kernels.logits`."""

    sample: Callable[[torch.Tensor, Sequence[Choice]], list[int]]
    survey: Callable[[torch.Tensor, int], Survey]
    edit: Callable[[torch.Tensor, LogitEdits], None]


def host_sampling() -> Sampling:
    """The best there is for logits on the CPU. All give the same bits."""
    if native.available():
        from baton.kernels.sample import native as sample

        return Sampling(sample.sample, sample.survey, host_logits.apply)
    return Sampling(host_sample.sample, host_sample.survey, host_logits.apply)


@dataclass(frozen=True, slots=True)
class Ops:
    """One backend's functions; each has the contract of the package that it comes from. sampling: for logits
    on the backend's device; None: they had better be brought to the host."""

    name: str
    prepare: Prepare
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    rotate_and_store: Callable[[torch.Tensor, Rotation, KvLayer, Slots, QkNorm | None], None]
    write_kv: Callable[[KvLayer, torch.Tensor, AttentionPlan], None]
    attention: Callable[[torch.Tensor, KvLayer, AttentionPlan, AttentionParams], torch.Tensor]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]
    route: Callable[[torch.Tensor, int, bool], Routing]
    experts: Callable[[torch.Tensor, Routing, Sequence[ExpertMlp]], torch.Tensor]
    sampling: Sampling | None = None


def choose(device: torch.device, wanted: str = "auto") -> Ops:
    """InvalidArgument (field `backend`): the one that is wanted cannot run on this device, or not here."""
    if wanted == "auto":
        if device.type == "cuda":
            return _triton()
        return _native() if device.type == "cpu" and native.available() else _torch(device)
    if wanted == "native":
        if device.type != "cpu":
            raise InvalidArgument(f"native kernels run on a CPU, not on {device}", field="backend")
        if not native.available():
            raise InvalidArgument("native kernels cannot run here; the log says why", field="backend")
        return _native()
    if wanted == "triton":
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise InvalidArgument(f"triton kernels run on a GPU, not on {device}", field="backend")
        return _triton()
    return _torch(device)


def rounding(name: str) -> str:
    """What the last bits of a backend's results depend on; nodes that differ in it do not work together."""
    return f"{name} {native.REVISION if name == 'native' else torch.__version__}"


def _torch(device: torch.device) -> Ops:
    from baton.kernels import attention
    from baton.kernels.attention import cpu as cpu_attention
    from baton.kernels.attention import reference as reference_attention
    from baton.kernels.linear import cpu as cpu_linear
    from baton.kernels.linear import reference as reference_linear
    from baton.kernels.moe import reference as moe
    from baton.kernels.rms_norm import cpu as cpu_rms_norm
    from baton.kernels.rms_norm import reference as reference_rms_norm
    from baton.kernels.rope import reference as rope
    from baton.kernels.silu_mul import cpu as cpu_silu_mul
    from baton.kernels.silu_mul import reference as reference_silu_mul

    if device.type == "cpu":
        return Ops(
            name="torch",
            prepare=cpu_linear.prepare,
            rms_norm=cpu_rms_norm.rms_norm,
            rotate_and_store=rope.rotate_and_store,
            write_kv=attention.write_kv,
            attention=cpu_attention.attention,
            silu_mul=cpu_silu_mul.silu_mul,
            route=moe.route,
            experts=moe.experts,
        )
    return Ops(
        name="torch",
        prepare=reference_linear.prepare,
        rms_norm=reference_rms_norm.rms_norm,
        rotate_and_store=rope.rotate_and_store,
        write_kv=attention.write_kv,
        attention=reference_attention.attention,
        silu_mul=reference_silu_mul.silu_mul,
        route=moe.route,
        experts=moe.experts,
    )


def _native() -> Ops:
    from baton.kernels.attention import native as paged
    from baton.kernels.attention import write_kv
    from baton.kernels.linear import native as linear
    from baton.kernels.moe import native as moe
    from baton.kernels.rms_norm import native as rms_norm
    from baton.kernels.rope import native as rope
    from baton.kernels.silu_mul import native as silu_mul

    return Ops(
        name="native",
        prepare=linear.prepare,
        rms_norm=rms_norm.rms_norm,
        rotate_and_store=rope.rotate_and_store,
        write_kv=write_kv,
        attention=paged.attention,
        silu_mul=silu_mul.silu_mul,
        route=moe.route,
        experts=moe.experts,
    )


def _triton() -> Ops:
    from baton.kernels.attention import triton as paged
    from baton.kernels.linear import triton as linear
    from baton.kernels.logits import triton as logits
    from baton.kernels.moe import triton as moe
    from baton.kernels.rms_norm import triton as rms_norm
    from baton.kernels.rope import triton as rope
    from baton.kernels.sample import triton as sample
    from baton.kernels.silu_mul import triton as silu_mul

    return Ops(
        name="triton",
        prepare=linear.prepare,
        rms_norm=rms_norm.rms_norm,
        rotate_and_store=rope.rotate_and_store,
        write_kv=paged.write_kv,
        attention=paged.attention,
        silu_mul=silu_mul.silu_mul,
        route=moe.route,
        experts=moe.experts,
        sampling=Sampling(sample.sample, sample.survey, logits.apply),
    )
