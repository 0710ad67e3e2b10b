"""Quantisation in plain torch. Works on a row's groups as [out, groups, group], the last one padded."""

from __future__ import annotations

import math

import torch

from baton.core.errors import InvalidArgument
from baton.kernels.quantize.scheme import ScaleFormat, WeightScheme
from baton.kernels.quantize.weight import FP4_VALUES, Codes, QuantizedWeight, pack4, unpack4

_LARGEST = {Codes.INT8: 127.0, Codes.INT4: 7.0, Codes.FP8: 448.0, Codes.FP4: 6.0}
_LEVELS = {Codes.INT8: 255.0, Codes.INT4: 15.0}  # steps from the least to the greatest code
_INT8_LEAST, _INT4_ZERO = -128.0, 8
_PIECE = 2**18  # weights
_MOST = 1e38  # a code times its scale, before the offset is added, may be twice the value
_SMALLEST = torch.finfo(torch.float32).tiny  # smaller scales are subnormal: their groups round to zero
_E4M3_LARGEST = 448.0


def quantize(weight: torch.Tensor, scheme: WeightScheme) -> QuantizedWeight:
    """weight: [out, in] of any float dtype. InvalidArgument: not such a matrix, or it holds NaN or values
    beyond 1e38. Groups whose scale would be subnormal (values below 1e-36 or so) become zero."""
    if weight.dim() != 2 or not weight.shape[1] or not weight.is_floating_point():
        raise InvalidArgument(f"cannot quantise a {weight.dtype} tensor of shape {list(weight.shape)}")
    least, greatest = (float(v) for v in weight.aminmax()) if weight.numel() else (0.0, 0.0)
    if not (least >= -_MOST and greatest <= _MOST):  # false for NaN, too
        raise InvalidArgument(
            f"cannot quantise {list(weight.shape)}: it holds values beyond {_MOST:g} or NaN"
        )
    inputs = weight.shape[1]
    group = min(scheme.group or inputs, inputs)
    global_scale = _global_scale(max(-least, greatest), scheme)
    # Some rows at a time: the fp32 copies on the way never grow with the matrix, and stay in the cache.
    pieces = [
        _quantize_rows(rows.float(), group, scheme, global_scale)
        for rows in weight.split(max(1, _PIECE // inputs))
    ]
    codes, scale, offset = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return QuantizedWeight(
        kind=scheme.kind,
        codes=codes.view(scheme.kind.dtype),
        scale=scale,
        in_features=inputs,
        group=group,
        offset=None if scheme.symmetric else offset,
        zero_point=_INT4_ZERO if scheme.kind is Codes.INT4 and scheme.symmetric else 0,
        global_scale=global_scale,
        activations=scheme.activations,
        activation_group=scheme.activation_group,
    )


def _quantize_rows(
    rows: torch.Tensor, group: int, scheme: WeightScheme, global_scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes as bytes, scale, offset (or the scale again, if the scheme has none)."""
    grouped = _grouped(rows, group)
    if scheme.symmetric:
        codes, scale = _symmetric(grouped, scheme, global_scale)
        offset = scale
    else:
        codes, scale, offset = _asymmetric(grouped, scheme)
    codes = codes.flatten(1)[:, : rows.shape[1]]
    return (pack4(codes) if scheme.kind.packed else codes.contiguous()).view(torch.uint8), scale, offset


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
    grouped: torch.Tensor, scheme: WeightScheme, global_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scale."""
    kind, largest = scheme.kind, _LARGEST[scheme.kind]
    scale = _scales(grouped.abs().amax(-1), scheme, global_scale)
    codes = grouped * _reciprocal(scale.float() * global_scale).unsqueeze(-1)
    codes = codes.clamp_(-largest, largest)
    if kind is Codes.FP8:
        return codes.to(kind.dtype), scale
    if kind is Codes.FP4:
        return _fp4(codes), scale
    codes = codes.round_().add_(_INT4_ZERO if kind is Codes.INT4 else 0)
    return codes.to(kind.dtype), scale


def _asymmetric(
    grouped: torch.Tensor, scheme: WeightScheme
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scale, offset. The grid spans the group's least to its greatest value: to fit it to the codes
    by least squares made the squared error a tenth smaller, and did not show in perplexity."""
    kind, levels = scheme.kind, _LEVELS[scheme.kind]
    least, greatest = grouped.aminmax(dim=-1)
    step = greatest / levels - least / levels  # their difference could overflow
    flat = step < _SMALLEST  # the offset says it all
    least = torch.where(flat, least / 2 + greatest / 2, least)
    scale = _rounded(torch.where(flat, 0.0, step), scheme.scale)
    first = _INT8_LEAST if kind is Codes.INT8 else 0.0
    offset = _rounded(least - first * scale.float(), scheme.scale)
    codes = (grouped - offset.float().unsqueeze(-1)).mul_(_reciprocal(scale.float()).unsqueeze(-1))
    codes = codes.round_().clamp_(first, first + levels)
    return codes.to(kind.dtype), scale, offset


def _global_scale(absmax: float, scheme: WeightScheme) -> float:
    """So that the scale of the group with the greatest value is the greatest e4m3 number."""
    if scheme.scale is not ScaleFormat.E4M3:
        return 1.0
    scale = absmax / _LARGEST[scheme.kind] / _E4M3_LARGEST
    return scale if scale >= _SMALLEST else 1.0


def _scales(absmax: torch.Tensor, scheme: WeightScheme, global_scale: float) -> torch.Tensor:
    """One per group; 0 where all of it rounds to zero."""
    largest = _LARGEST[scheme.kind]
    if scheme.scale is ScaleFormat.E8M0:
        # The specification's rule: the greatest exponent of the group less that of the greatest element.
        exponent = torch.frexp(absmax).exponent - math.frexp(largest)[1]
        powers = torch.ldexp(torch.ones_like(absmax), exponent.clamp(-126, 127))
        return torch.where(absmax < _SMALLEST, 0.0, powers).to(torch.bfloat16)
    scale = absmax / largest
    scale = torch.where(scale < _SMALLEST, 0.0, scale)
    if scheme.scale is ScaleFormat.E4M3:
        return (scale / global_scale).clamp_(max=_E4M3_LARGEST).to(torch.float8_e4m3fn).bfloat16()
    return _rounded(scale, scheme.scale)


def _rounded(values: torch.Tensor, form: ScaleFormat) -> torch.Tensor:
    if form is ScaleFormat.FP32:
        return values
    limit = torch.finfo(torch.bfloat16).max
    return values.clamp(-limit, limit).to(torch.bfloat16)


def _reciprocal(scale: torch.Tensor) -> torch.Tensor:
    """0 for scales whose reciprocal would overflow: all that they scale becomes zero."""
    usable = scale >= _SMALLEST
    return torch.where(usable, 1.0 / torch.where(usable, scale, 1.0), 0.0)


def _fp4(values: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 codes, ties to the even one. The steps are 0.5 below 2, 1 below 4, 2 up to 6."""
    size = values.abs()
    coarse = torch.where(size < 4, size.round() + 2, (size / 2).round() + 4)
    codes = torch.where(size < 2, (size * 2).round(), coarse)
    return (codes + 8 * torch.signbit(values)).to(torch.uint8)
