"""Blocks of a GGUF file as they are, against the gguf package's own decoder; matrices in every form."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from baton.core.errors import InvalidArgument
from baton.engine.weights.gguf import GgufFile
from baton.engine.weights.matrix import QUANTIZATIONS, load_matrix, storage
from baton.kernels.quantize import SCHEMES, Codes, QuantizedWeight, dequantize
from tests.engine.test_load_gguf import write_gguf
from tests.models import write_model

Kind = gguf.GGMLQuantizationType
ATTENTION, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"
QKV = [f"{ATTENTION}.{part}_proj.weight" for part in "qkv"]


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return load_file(write_model(tmp_path_factory.mktemp("t") / "T", "T") / "model.safetensors")


def _decoded(tensor: torch.Tensor, kind: Kind) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(gguf.quantize(tensor.float().numpy(), kind), kind))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("kind", "codes", "zero_point", "has_offset"),
    [
        (Kind.Q4_0, Codes.INT4, 8, False),
        (Kind.Q4_1, Codes.INT4, 0, True),
        (Kind.Q8_0, Codes.INT8, 0, False),
    ],
)
def test_blocks_as_they_are(
    tensors: dict[str, torch.Tensor],
    tmp_path: Path,
    architecture: str,
    kind: Kind,
    codes: Codes,
    zero_point: int,
    has_offset: bool,
) -> None:
    kinds = {"proj": kind, "embed": kind}
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors, architecture, kinds))
    for name in (*QKV, f"{ATTENTION}.o_proj.weight", f"{MLP}.down_proj.weight", "model.embed_tokens.weight"):
        weight = file.quantized(name)
        assert weight is not None
        assert (weight.kind, weight.group, weight.zero_point) == (codes, 32, zero_point)
        assert weight.scale.dtype is torch.float16
        assert (weight.offset is not None) == has_offset
        assert torch.equal(dequantize(weight), _decoded(tensors[name], kind))
        copied = torch.empty(weight.shape)
        file.copy_into(name, copied)
        assert torch.equal(copied, dequantize(weight))
    assert file.quantized("lm_head.weight") is None
    assert file.quantized("model.norm.weight") is None


def test_other_blocks_are_dequantised(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors, kinds={"proj": Kind.Q5_0}))
    assert file.quantized(QKV[0]) is None
    dense = load_matrix(file, QKV, storage("auto", torch.float32))
    assert isinstance(dense, torch.Tensor)
    wanted = torch.cat([_decoded(tensors[name], Kind.Q5_0) for name in QKV])
    assert torch.equal(dense, wanted)


def test_mixed_blocks_are_joined_without_a_change_of_value(
    tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    kinds = {"q_proj": Kind.Q4_0, "k_proj": Kind.Q4_1, "v_proj": Kind.Q8_0}
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors, kinds=kinds))
    joined = load_matrix(file, QKV, storage("auto", torch.float32))
    assert isinstance(joined, QuantizedWeight)
    assert joined.kind is Codes.INT8
    wanted = torch.cat([_decoded(tensors[name], kinds[name.split(".")[-2]]) for name in QKV])
    torch.testing.assert_close(dequantize(joined), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_every_way_of_holding_a_matrix(
    quantization: str, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    file = GgufFile(write_gguf(tmp_path / "m.gguf", tensors, kinds={"proj": Kind.Q8_0}))
    wanted = torch.cat([_decoded(tensors[name], Kind.Q8_0) for name in QKV])
    found = load_matrix(file, QKV, storage(quantization, torch.float32))
    if quantization == "none":
        assert torch.equal(found, wanted)
        return
    assert isinstance(found, QuantizedWeight)
    if quantization == "auto":
        assert torch.equal(dequantize(found), wanted)
        return
    assert found.kind is SCHEMES[quantization].kind
    assert found.activations == SCHEMES[quantization].activations
    assert float((dequantize(found) - wanted).norm() / wanted.norm()) < 0.15


def test_the_head_is_held_in_eight_bits_where_the_rest_has_four() -> None:
    for quantization in QUANTIZATIONS:
        head = storage(quantization, torch.float32, head=True).scheme
        assert head is None or head.kind in (Codes.INT8, Codes.FP8)
        assert head is None or head.activations != "int8" or quantization == "int8-w8a8"
    with pytest.raises(InvalidArgument, match="quantization: must be one of auto, none, int8"):
        storage("int5", torch.float32)


def test_scales_that_are_no_numbers_are_refused(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, kinds={"down_proj": Kind.Q8_0})
    start = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight").data_offset
    content = bytearray(path.read_bytes())
    content[start : start + 2] = np.array([np.inf], np.float16).tobytes()
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"m\.gguf: blk\.1\.ffn_down\.weight has scales"):
        GgufFile(path).quantized(f"{MLP}.down_proj.weight")
