"""Quantisation in plain torch. Works on a row's groups as [out, groups, group], the last one padded."""

from __future__ import annotations

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize.scheme import ScaleFormat, WeightScheme
from baton.kernels.quantize.weight import FP4_VALUES, Codes, QuantizedWeight, pack4, unpack4

_LARGEST = {Codes.INT8: 127.0, Codes.INT4: 7.0, Codes.FP8: 448.0, Codes.FP4: 6.0}
_LEVELS = {Codes.INT8: 255.0, Codes.INT4: 15.0}  # steps from the least to the greatest code
_INT8_LEAST, _INT4_ZERO = -128.0, 8
_MOST = 1e38  # a code times its scale, before the offset is added, may be twice the value
_SMALLEST = torch.finfo(torch.float32).tiny  # smaller scales are subnormal: their groups round to zero
# Midpoints between neighbouring e2m1 magnitudes; `bucketize` with right=... settles ties towards even codes.
_FP4_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_E4M3_LARGEST = 448.0


def quantize(weight: torch.Tensor, scheme: WeightScheme) -> QuantizedWeight:
    """weight: [out, in] of any float dtype. InvalidArgument: not such a matrix, or it holds NaN or values
    beyond 1e38. Groups whose scale would be subnormal (values below 1e-36 or so) become zero."""
    if weight.dim() != 2 or not weight.shape[1] or not weight.is_floating_point():
        raise InvalidArgument(f"cannot quantise a {weight.dtype} tensor of shape {list(weight.shape)}")
    if weight.numel() and not float(weight.abs().amax()) <= _MOST:  # false for NaN, too
        raise InvalidArgument(
            f"cannot quantise {list(weight.shape)}: it holds values beyond {_MOST:g} or NaN"
        )
    inputs = weight.shape[1]
    group = min(scheme.group or inputs, inputs)
    grouped = _grouped(weight.float(), group)
    codes, scale, offset, global_scale = (
        _symmetric(grouped, scheme) if scheme.symmetric else _asymmetric(grouped, scheme)
    )
    codes = codes.flatten(1)[:, :inputs]
    return QuantizedWeight(
        kind=scheme.kind,
        codes=pack4(codes) if scheme.kind.packed else codes.contiguous(),
        scale=scale,
        in_features=inputs,
        group=group,
        offset=offset,
        zero_point=_INT4_ZERO if scheme.kind is Codes.INT4 and offset is None else 0,
        global_scale=global_scale,
        activations=scheme.activations,
        activation_group=scheme.activation_group,
    )


def dequantize(weight: QuantizedWeight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[out, in], inputs in their own order. Computed in fp32 (fp64 for dtype float64)."""
    exact = torch.float64 if dtype is torch.float64 else torch.float32
    grouped = _grouped(_values(weight, exact), weight.group)
    # fp32: the two scales' product first, which is what a kernel keeps.
    grouped.mul_((weight.scale.to(exact) * weight.global_scale).unsqueeze(-1))
    if weight.offset is not None:
        grouped.add_(weight.offset.to(exact).unsqueeze(-1))
    values = grouped.flatten(1)[:, : weight.in_features]
    if weight.in_order is not None:
        values = torch.empty_like(values).index_copy_(1, weight.in_order, values)
    return values.to(dtype).contiguous()


def _values(weight: QuantizedWeight, dtype: torch.dtype) -> torch.Tensor:
    """What the codes stand for before scaling."""
    if not weight.kind.packed:
        values = weight.codes.to(dtype)
    else:
        codes = unpack4(weight.codes, weight.in_features)
        if weight.kind is Codes.FP4:
            table = torch.tensor(FP4_VALUES, dtype=dtype, device=codes.device)
            return table[codes.long()]
        values = codes.to(dtype)
    return values - weight.zero_point if weight.zero_point else values


def _grouped(values: torch.Tensor, group: int) -> torch.Tensor:
    """[out, groups, group]; what is missing of the last group repeats the row's last value, so that
    neither the group's least nor its greatest changes."""
    out, inputs = values.shape
    if missing := -inputs % group:
        values = torch.cat((values, values[:, -1:].expand(out, missing)), 1)
    return values.reshape(out, -1, group)


def _symmetric(
    grouped: torch.Tensor, scheme: WeightScheme
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]:
    """Codes, scale, no offset, global scale."""
    kind = scheme.kind
    absmax = grouped.abs().amax(-1)
    scale, global_scale = _scales(absmax, scheme)
    codes = grouped * _reciprocal(scale.float() * global_scale).unsqueeze(-1)
    largest = _LARGEST[kind]
    codes = codes.clamp_(-largest, largest)
    if kind is Codes.FP8:
        return codes.to(kind.dtype), scale, None, global_scale
    if kind is Codes.FP4:
        return _fp4(codes), scale, None, global_scale
    codes = codes.round_().add_(_INT4_ZERO if kind is Codes.INT4 else 0)
    return codes.to(kind.dtype), scale, None, global_scale


def _asymmetric(
    grouped: torch.Tensor, scheme: WeightScheme
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]:
    """Codes, scale, offset, no global scale. The grid spans the group's least to its greatest value."""
    kind, levels = scheme.kind, _LEVELS[scheme.kind]
    least, greatest = grouped.amin(-1), grouped.amax(-1)
    step = greatest / levels - least / levels  # their difference could overflow
    flat = step < _SMALLEST  # the offset says it all
    least = torch.where(flat, least / 2 + greatest / 2, least)
    scale = _rounded(torch.where(flat, 0.0, step), scheme.scale)
    first = _INT8_LEAST if kind is Codes.INT8 else 0.0
    offset = _rounded(least - first * scale.float(), scheme.scale)
    codes = (grouped - offset.float().unsqueeze(-1)) * _reciprocal(scale.float()).unsqueeze(-1)
    codes = codes.round_().clamp_(first, first + levels)
    return codes.to(kind.dtype), scale, offset, 1.0


def _scales(absmax: torch.Tensor, scheme: WeightScheme) -> tuple[torch.Tensor, float]:
    """Scale per group, and the scale of all."""
    largest = _LARGEST[scheme.kind]
    if scheme.scale is ScaleFormat.E8M0:
        # The specification's rule: the greatest exponent of the group less that of the greatest element.
        exponent = torch.frexp(absmax).exponent - 1 - int(_exponent(largest))
        powers = torch.ldexp(torch.ones_like(absmax), exponent.clamp(-126, 127))
        return torch.where(absmax < _SMALLEST, 0.0, powers).to(torch.bfloat16), 1.0
    scale = absmax / largest
    scale = torch.where(scale < _SMALLEST, 0.0, scale)
    if scheme.scale is ScaleFormat.E4M3:
        global_scale = float(scale.amax()) / _E4M3_LARGEST if scale.numel() else 0.0
        if global_scale < _SMALLEST:
            return torch.zeros_like(scale, dtype=torch.bfloat16), 1.0
        return (scale / global_scale).clamp_(max=_E4M3_LARGEST).to(
            torch.float8_e4m3fn
        ).bfloat16(), global_scale
    return _rounded(scale, scheme.scale), 1.0


def _exponent(value: float) -> float:
    return float(torch.frexp(torch.tensor(value)).exponent) - 1


def _rounded(values: torch.Tensor, form: ScaleFormat) -> torch.Tensor:
    if form is ScaleFormat.FP32:
        return values
    limit = torch.finfo(torch.bfloat16).max
    return values.clamp(-limit, limit).to(torch.bfloat16)


def _reciprocal(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, 0.0, 1.0 / torch.where(scale == 0, 1.0, scale))


def _fp4(values: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 codes, ties to the even code, as the specification's default rounding."""
    magnitude = values.abs()
    middle = torch.tensor(_FP4_MIDPOINTS, device=values.device)
    above = torch.bucketize(magnitude, middle, out_int32=True)  # ties fall to the lower code
    up = torch.bucketize(magnitude, middle, out_int32=True, right=True)  # ties go to the higher one
    codes = torch.where(above % 2 == 0, above, up)
    return (codes + 8 * torch.signbit(values)).to(torch.uint8)
