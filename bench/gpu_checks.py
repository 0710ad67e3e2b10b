"""Whether the Triton kernels compute on a GPU what they should, against torch in fp64 on the same device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from baton.bench.gpu_step import BLOCK_SIZE, Noise, Sizes, Step, step
from baton.kernels import sample
from baton.kernels.attention import KvLayer
from baton.kernels.attention import reference as reference_attention
from baton.kernels.attention import triton as paged
from baton.kernels.attention.kv_layer import CODE_MAX, dequantize_kv, quantize_kv
from baton.kernels.blocks import KvVectors
from baton.kernels.blocks import triton as triton_blocks
from baton.kernels.linear import reference as reference_linear
from baton.kernels.linear import triton as linear
from baton.kernels.linear.reference import round_activations
from baton.kernels.logits import LogitEdits
from baton.kernels.logits import reference as reference_logits
from baton.kernels.logits import triton as triton_logits
from baton.kernels.merge_states import reference as reference_merge
from baton.kernels.merge_states import triton as triton_merge
from baton.kernels.moe import ExpertMlp
from baton.kernels.moe import reference as reference_moe
from baton.kernels.moe import triton as moe
from baton.kernels.quantize import SCHEMES, QuantizedWeight, dequantize, quantize, scheme
from baton.kernels.rms_norm import reference as reference_norm
from baton.kernels.rms_norm import triton as rms_norm
from baton.kernels.rope import QkNorm, Slots, tables
from baton.kernels.rope import reference as reference_rope
from baton.kernels.rope import triton as rope
from baton.kernels.sample import triton as triton_sample
from baton.kernels.silu_mul import reference as reference_silu
from baton.kernels.silu_mul import triton as silu_mul

KV_DTYPES = (torch.bfloat16, torch.int8, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class Check:
    """error: the largest. Bound 0: bits are equal, and error counts those that are not."""

    name: str
    error: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.error <= self.bound  # not for NaN


def checks(device: torch.device, sizes: Sizes) -> Iterator[Check]:
    noise = Noise(device)
    yield from _attention(noise, sizes)
    yield from _products(noise, sizes)
    yield from _experts(noise, sizes)
    yield from _small(noise, sizes)
    yield from _written(noise, sizes)
    yield from _converted(noise, sizes)
    yield from _chosen(noise, sizes)


def _attention(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    half = sizes.context // 2
    rows = [(sizes.context - 1, 1), (0, 1), (half, 5), (half // 3, min(half, 1_000)), (0, 0), (7, 1)]
    for kv_dtype in KV_DTYPES:
        one = step(noise, sizes.heads, rows, dtypes=(torch.bfloat16, kv_dtype))
        yield _attends(f"attention, mixed step, {_short(kv_dtype)} KV", one, 3e-2)
    one = step(noise, (9, 3, 24), rows, dtypes=(torch.float16, torch.float16))
    yield _attends("attention, 9 heads of 24, fp16", one, 4e-3)
    prefix = half // BLOCK_SIZE * BLOCK_SIZE
    rows = [(prefix + own, length) for own, length in ((0, 1), (5, 1), (40, 3), (1, 1))]
    yield _attends("cascade", step(noise, sizes.heads, rows, prefix=prefix), 3e-2)
    heads, _, head_dim = sizes.heads
    tokens = (sizes.tokens, heads)
    states = [noise(*tokens, head_dim), noise(*tokens), noise(*tokens, head_dim), noise(*tokens)]
    want, _ = reference_merge.merge_states(*(part.double() for part in states))
    yield Check("merge of states", _furthest(triton_merge.merge_states(*states)[0], want), 1e-5)


def _attends(name: str, one: Step, bound: float) -> Check:
    got, got_lse = paged.attention_lse(one.q, one.layer, one.plan, one.params)
    want, want_lse = reference_attention.attention_lse(one.q.double(), one.exact, one.plan, one.params)
    return Check(name, max(_furthest(got, want), _furthest(got_lse, want_lse)), bound)


def _products(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    for inputs, outputs in (sizes.product, (331, 7)):
        for name in ("dense", *SCHEMES):
            made = noise(outputs, inputs, dtype=torch.bfloat16)
            weight = made if name == "dense" else quantize(made, scheme(name))
            layer = linear.prepare(weight)
            if isinstance(weight, QuantizedWeight):
                ids = torch.arange(outputs - 1, 0, -3, device=noise.device)[:50]
                differing = float((layer.rows(ids) != dequantize(weight.rows(ids))).sum())
                yield Check(f"{name} rows, {inputs} x {outputs}", differing, 0.0)
            odd = name == "dense" or inputs == 331
            for dtype in (torch.bfloat16,) if odd else (torch.bfloat16, torch.float16):
                x = noise(sizes.tokens, inputs, dtype=dtype)
                y = layer(x)
                label = f"{name} product, {inputs} x {outputs}, {_short(dtype)}"
                yield Check(label, _product_error(y, x, weight), 6e-3)
                alone = torch.cat([layer(x[i : i + 1]) for i in range(0, sizes.tokens, 37)])
                differing = float((alone != y[::37]).double().mean())
                # The interpreter multiplies by numpy, whose sums depend on the shape.
                yield Check(f"{label}: rows alone", differing, 0.0 if x.is_cuda else 1.0)


def _product_error(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | QuantizedWeight) -> float:
    """In pieces of the outputs: fp64 copies are large."""
    error = 0.0
    seen = x.double() if isinstance(weight, torch.Tensor) else round_activations(x.float(), weight).double()
    for begin in range(0, y.shape[1], 2_048):
        part = slice(begin, begin + 2_048)
        if isinstance(weight, torch.Tensor):
            dense = weight[part].double()
        else:
            dense = dequantize(weight.rows(part), torch.float64)
        size = seen.norm(dim=1, keepdim=True) * dense.norm(dim=1)
        error = max(error, float(((y[:, part].double() - seen @ dense.T).abs() / size).max()))
    return error


def _experts(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    width, inner, count, top_k = sizes.product[0] // 4, sizes.product[0] // 8, 8, 2
    for name in ("dense", "int8", "int4"):
        ours, references = [], []
        for _ in range(count):
            made = [noise(2 * inner, width, dtype=torch.bfloat16), noise(width, inner, dtype=torch.bfloat16)]
            weights = made if name == "dense" else [quantize(one, scheme(name)) for one in made]
            ours.append(ExpertMlp(*(linear.prepare(one) for one in weights)))
            references.append(ExpertMlp(*(reference_linear.prepare(one) for one in weights)))
        x, logits = noise(sizes.tokens, width, dtype=torch.bfloat16), noise(sizes.tokens, count)
        routing, want_routing = (m.route(logits, top_k, True) for m in (moe, reference_moe))
        yield Check(f"routing, {name}", float((routing.ids != want_routing.ids).sum()), 0.0)
        want = reference_moe.experts(x.double(), want_routing, references)
        got = moe.experts(x, routing, ours)
        yield Check(f"experts, {name}", _furthest(got, want) / float(want.abs().max()), 4e-2)


def _small(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    x, weight = (noise(*shape, dtype=torch.bfloat16) for shape in ((sizes.tokens, sizes.gemm), (sizes.gemm,)))
    want = reference_norm.rms_norm(x.double(), weight.double(), 1e-6)
    yield Check("rms norm", _furthest(rms_norm.rms_norm(x, weight, 1e-6), want), 0.1)
    want = reference_silu.silu_mul(x.double())
    yield Check("silu and multiply", _furthest(silu_mul.silu_mul(x), want), 0.1)


def _written(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    """Rotated keys, and what is stored of them: the rule's bits."""
    heads, kv_heads, head_dim = sizes.heads
    tokens = sizes.tokens
    norm = QkNorm(noise(head_dim), noise(head_dim), 1e-6)
    rotation = tables(noise(tokens, head_dim // 2), 1.0, torch.float32)
    places = torch.randperm(tokens, device=noise.device)
    slots = Slots(places // BLOCK_SIZE, places % BLOCK_SIZE)
    shape = (-(-tokens // BLOCK_SIZE), 2, BLOCK_SIZE, kv_heads, head_dim)
    given = noise(tokens, heads + 2 * kv_heads, head_dim)
    want = given.clone()
    reference_rope.rotate_and_store(want, rotation, KvLayer(noise(*shape)), slots, norm)
    for dtype in (torch.float16, *CODE_MAX):
        quantized = dtype in CODE_MAX
        scales = torch.zeros(shape[:-1], dtype=torch.bfloat16, device=noise.device) if quantized else None
        codes = torch.zeros(shape, dtype=torch.uint8, device=noise.device)
        codes = codes.view(dtype) if quantized else noise(*shape, dtype=dtype)
        got = given.clone()
        rope.rotate_and_store(got, rotation, KvLayer(codes, scales), slots, norm)
        yield Check(f"rotation, {_short(dtype)} KV", _furthest(got, want.double()), 1e-4)
        vectors = got[:, heads:].unflatten(1, (2, kv_heads))
        differing = 0.0
        if scales is not None:
            vectors, expected = quantize_kv(vectors, dtype)
            differing += float((scales[slots.blocks, :, slots.offsets] != expected).sum())
        stored = codes.view(torch.uint8)[slots.blocks, :, slots.offsets]
        differing += float((stored != vectors.to(dtype).view(torch.uint8)).sum())
        yield Check(f"stored KV, {_short(dtype)}", differing, 0.0)


def _converted(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    """KV from one dtype to another."""
    _, kv_heads, head_dim = sizes.heads
    shape = (sizes.tokens, 3, 2, BLOCK_SIZE, kv_heads, head_dim)
    given = KvVectors(noise(*shape, dtype=torch.bfloat16))
    for dtype in CODE_MAX:
        codes, scales = quantize_kv(given.values, dtype)
        got = KvVectors(torch.empty_like(codes), torch.empty_like(scales))
        triton_blocks.convert(got, given)
        differing = float((got.values.view(torch.uint8) != codes.view(torch.uint8)).sum())
        yield Check(f"bfloat16 KV to {_short(dtype)}", differing, 0.0)
        back = KvVectors(torch.empty(shape, dtype=torch.float32, device=noise.device))
        triton_blocks.convert(back, got)
        differing = float((back.values != dequantize_kv(codes, scales)).sum())
        yield Check(f"{_short(dtype)} KV to float32", differing, 0.0)


def _chosen(noise: Noise, sizes: Sizes) -> Iterator[Check]:
    """Tokens, and edits of logits: the host's bits."""
    filters = [(0, 1.0, 0.0), (50, 1.0, 0.0), (0, 0.9, 0.0), (40, 0.95, 0.05)]
    choices = [
        sample.Choice(t, *one, 0.1 + t / 7) for t in (0.0, 0.7, 6.0) for one in filters[(t == 0.0) * 3 :]
    ]
    logits = noise(len(choices), sizes.vocab) * 4
    entries = torch.arange(len(choices) * 50, device=noise.device)
    scale, add = (noise(len(entries), dtype=torch.float64) for _ in range(2))
    edits = LogitEdits(entries // 50, entries % 50 * 5, scale.exp(), add)
    edited = logits.cpu()
    reference_logits.apply(edited, LogitEdits(*(part.cpu() for part in edits)))
    triton_logits.apply(logits, edits)
    yield Check("edits of logits", float((logits.cpu() != edited).sum()), 0.0)
    chosen = zip(triton_sample.sample(logits, choices), sample.reference.sample(edited, choices), strict=True)
    yield Check("sampling", float(sum(got != want for got, want in chosen)), 0.0)
    mass = triton_sample.survey(logits, 0).mass.cpu()
    yield Check("survey", float((mass != sample.reference.survey(edited, 0).mass).sum()), 0.0)


def _furthest(got: torch.Tensor, want: torch.Tensor) -> float:
    # Rows that see nothing: -inf on both sides.
    same = (got == want) & want.isinf()
    return float((got.double() - want).masked_fill(same, 0.0).abs().max())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
