"""Checkpoints of codes and scales: read as they are, equal to a decoder of their own, refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.core.errors import InvalidArgument
from baton.engine.weights.matrix import load_matrix, storage
from baton.engine.weights.quantized_folder import QuantizedFolder, open_folder
from baton.engine.weights.source import check_complete
from baton.kernels.quantize import Codes, QuantizedWeight, dequantize
from tests.engine import packing
from tests.engine.packing import Checkpoint, Matrix

Q, K = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"
INT8, FP8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
DYNAMIC = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def compressed(form: str, weights: dict[str, Any], activations: Any = None, **options: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **options,
    }


def _read(tmp_path: Path, options: dict[str, Any], matrix: Matrix) -> QuantizedWeight:
    """What the matrix is read as, checked against its values both ways."""
    source = open_folder(Checkpoint(options, {Q: matrix}).write(tmp_path / "model"))
    assert dict(source.shapes()) == {f"{Q}.weight": matrix.values.shape}
    weight = source.quantized(f"{Q}.weight")
    assert weight is not None
    np.testing.assert_allclose(dequantize(weight, torch.float64).numpy(), matrix.values, rtol=1e-7, atol=1e-9)
    dense = torch.empty(matrix.values.shape)
    source.copy_into(f"{Q}.weight", dense)
    np.testing.assert_allclose(dense.numpy(), matrix.values, rtol=1e-5, atol=1e-6)
    return weight


# ---- compressed-tensors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("shape", "group", "strategy"),
    [((24, 96), 32, "group"), ((331, 96), 64, "group"), ((5, 43), -1, "channel"), ((8, 40), 40, "group")],
)
def test_packed_integers(
    rng: np.random.Generator,
    tmp_path: Path,
    bits: int,
    symmetric: bool,
    shape: tuple[int, int],
    group: int,
    strategy: str,
) -> None:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy}
    options = compressed("pack-quantized", weights | {"group_size": group})
    weight = _read(tmp_path, options, packing.packed_ints(rng, shape, bits, group, symmetric))
    assert weight.kind is (Codes.INT4 if bits == 4 else Codes.INT8)
    assert weight.scale.dtype is torch.float16
    assert (weight.offset is None) == symmetric
    assert weight.activations is None


def test_packed_integers_in_another_order(rng: np.random.Generator, tmp_path: Path) -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": "group"}
    matrix = packing.packed_ints(rng, (16, 96), 4, 32, True, order=True)
    weight = _read(tmp_path, compressed("pack-quantized", weights), matrix)
    assert weight.in_order is not None


@pytest.mark.parametrize("scales", ["tensor", "channel", "32"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_plain_integers(rng: np.random.Generator, tmp_path: Path, scales: str, symmetric: bool) -> None:
    strategy = {"strategy": "group", "group_size": 32} if scales == "32" else {"strategy": scales}
    options = compressed("int-quantized", INT8 | strategy | {"symmetric": symmetric}, DYNAMIC)
    weight = _read(tmp_path, options, packing.plain_ints(rng, (33, 64), scales, symmetric))
    assert weight.activations == "int8"
    assert weight.activation_group == 64


@pytest.mark.parametrize("scales", ["tensor", "channel", (16, 32)])
def test_fp8(rng: np.random.Generator, tmp_path: Path, scales: Any) -> None:
    blocks = isinstance(scales, tuple)
    strategy = {"strategy": "block", "block_structure": scales} if blocks else {"strategy": scales}
    options = compressed("float-quantized", FP8 | strategy, FP8 | {"strategy": "token", "dynamic": True})
    weight = _read(tmp_path, options, packing.floats8(rng, (40, 80), scales))
    assert weight.kind is Codes.FP8
    assert weight.activations == "fp8"


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_fp4(rng: np.random.Generator, tmp_path: Path, kind: str) -> None:
    size = {"nvfp4": 16, "mxfp4": 32}[kind]
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": size}
    weight = _read(
        tmp_path, compressed(f"{kind}-pack-quantized", weights), packing.floats4(rng, (7, 64), kind)
    )
    assert (weight.kind, weight.group) == (Codes.FP4, size)


def test_each_module_by_the_group_that_names_it(rng: np.random.Generator, tmp_path: Path) -> None:
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    options = compressed("mixed-precision", INT8 | {"strategy": "channel"}, format="mixed-precision")
    options["config_groups"] = {
        "all": {"targets": ["Linear"], "weights": INT8 | {"strategy": "channel"}, "format": "int-quantized"},
        "some": {"targets": [r"re:.*\.q_proj"], "weights": four, "format": "pack-quantized"},
    }
    modules = {
        Q: packing.packed_ints(rng, (16, 64), 4, 32, True),
        K: packing.plain_ints(rng, (8, 64), "channel", True),
    }
    head = torch.randn(11, 64)
    source = open_folder(Checkpoint(options, modules, {"lm_head.weight": head}).write(tmp_path / "m"))
    assert source.quantized("lm_head.weight") is None
    copied = torch.empty(11, 64)
    source.copy_into("lm_head.weight", copied)
    assert torch.equal(copied, head)
    assert [source.quantized(f"{m}.weight").kind for m in (Q, K)] == [Codes.INT4, Codes.INT8]


_PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_WITHOUT_GROUP = {key: value for key, value in _PACKED.items() if key != "group_size"}
_BLOCK = {"num_bits": 4, "type": "int", "strategy": "block"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (compressed("marlin-24", _PACKED), "format 'marlin-24' is not known"),
        (compressed("pack-quantized", _PACKED | {"num_bits": 3}), "type int with 3 bits"),
        (compressed("pack-quantized", _PACKED | {"strategy": "spiral"}), "strategy 'spiral'"),
        (compressed("pack-quantized", _PACKED | {"dynamic": True}), "cannot be dynamic"),
        (compressed("pack-quantized", _PACKED, sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24"),
        (compressed("pack-quantized", _PACKED, transform_config={"config_groups": {"R1": {}}}), "transform_"),
        (compressed("pack-quantized", _PACKED, config_groups={"W4A16": ["Linear"]}), "preset"),
        (compressed("pack-quantized", _PACKED, ignore=["re:.*self_attn.*"]), r"q_proj: .*no config group"),
        (compressed("pack-quantized", _PACKED | {"group_size": 64}), r"q_proj: scale is \[16, 3\].*64"),
        (compressed("pack-quantized", _WITHOUT_GROUP), r"group_0: group_size must be .*got None"),
        (compressed("pack-quantized", _PACKED | {"group_size": 0}), "group_size must be .*got 0"),
        (compressed("pack-quantized", _PACKED | {"group_size": "32"}), "group_size must be .*got '32'"),
        (compressed("pack-quantized", _PACKED | {"num_bits": None}), "num_bits must be .*got None"),
        (compressed("pack-quantized", _BLOCK), "block_structure must be .*got None"),
        (compressed("pack-quantized", _BLOCK | {"block_structure": [16]}), r"block_structure .*got \[16\]"),
        (
            compressed("pack-quantized", _BLOCK | {"block_structure": "16x"}),
            "block_structure must be .*got ''",
        ),
        (compressed("pack-quantized", _BLOCK | {"block_structure": [0, 32]}), "block_structure must.*got 0"),
        (compressed("pack-quantized", _BLOCK | {"block_structure": "4x0"}), "block_structure must.*got 0"),
        (
            compressed("pack-quantized", _PACKED, ignore=["re:(q_proj"]),
            r"ignore: 're:\(q_proj' is no pattern",
        ),
        (compressed("pack-quantized", _PACKED, ignore="lm_head"), "ignore must be a list of names"),
        (compressed("pack-quantized", _PACKED, config_groups={"g": {"weights": _PACKED}}), "g: targets must"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size must be .*got \[128\]"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size must be .*got 0"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes', which is not supported"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*k_proj": {"bits": 8}}}, "dynamic: '"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "awq", "bits": 8}, "8 bits"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "gptq", "bits": "many"}, "quantization_config: "),
        ("gptq", "must be an object, not 'gptq'"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(
    rng: np.random.Generator, tmp_path: Path, options: Any, message: str
) -> None:
    folder = Checkpoint(options, {Q: packing.packed_ints(rng, (16, 96), 4, 32, True)}).write(tmp_path / "m")
    with pytest.raises(InvalidArgument, match=message) as caught:
        open_folder(folder).quantized(f"{Q}.weight")
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_scale": torch.ones(16, 2)}, r"scale is \[16, 2\].* 3 groups of 32"),
        ({"weight_packed": torch.zeros(16, 11, dtype=torch.int32)}, r"weight_packed is \[16, 11\].*16 x 96"),
        ({"weight_packed": torch.zeros(16, 12)}, "packed values are torch.float32"),
        ({"weight_scale": torch.full((16, 3), float("nan"))}, "no finite numbers"),
        ({"weight_zero_point": torch.zeros(3, 3, dtype=torch.int8)}, r"scale is \[3, 3\]"),
        ({"weight_g_idx": torch.zeros(96, dtype=torch.int32)}, "does not put 96 inputs into groups of 32"),
        ({"weight_g_idx": torch.zeros(95, dtype=torch.int32)}, r"g_idx is \[95\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    rng: np.random.Generator, tmp_path: Path, change: dict[str, torch.Tensor], message: str
) -> None:
    matrix = packing.packed_ints(rng, (16, 96), 4, 32, True)
    matrix.tensors |= change
    source = open_folder(Checkpoint(compressed("pack-quantized", _PACKED), {Q: matrix}).write(tmp_path / "m"))
    with pytest.raises(InvalidArgument, match=rf"m: {Q}: .*{message}|m: {Q} has scales that are {message}"):
        source.quantized(f"{Q}.weight")


@pytest.mark.parametrize(
    "shape",
    [
        torch.tensor([16, 96, 1]),
        torch.tensor([16]),
        torch.tensor([0, 96]),
        torch.tensor([16, -96]),
        torch.ones(2),
    ],
)
def test_a_shape_that_is_not_two_sizes_is_refused(
    rng: np.random.Generator, tmp_path: Path, shape: torch.Tensor
) -> None:
    matrix = packing.packed_ints(rng, (16, 96), 4, 32, True)
    matrix.tensors["weight_shape"] = shape
    folder = Checkpoint(compressed("pack-quantized", _PACKED), {Q: matrix}).write(tmp_path / "m")
    with pytest.raises(InvalidArgument, match=rf"{Q}: weight_shape must be two sizes"):
        open_folder(folder)


@pytest.mark.parametrize("values", [[0.0], [1.0, 2.0], [], [-1.0], [float("nan")], [float("inf")]])
def test_a_global_scale_that_is_no_number_to_divide_by_is_refused(
    rng: np.random.Generator, tmp_path: Path, values: list[float]
) -> None:
    matrix = packing.floats4(rng, (7, 64), "nvfp4")
    matrix.tensors["weight_global_scale"] = torch.tensor(values)
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    options = compressed("nvfp4-pack-quantized", weights)
    source = open_folder(Checkpoint(options, {Q: matrix}).write(tmp_path / "m"))
    with pytest.raises(InvalidArgument, match=rf"{Q}: weight_global_scale must be one number above 0"):
        source.quantized(f"{Q}.weight")


@pytest.mark.parametrize("bits", [0x7F, 0xFF])
def test_nan_among_fp8_codes_is_refused(rng: np.random.Generator, tmp_path: Path, bits: int) -> None:
    matrix = packing.floats8(rng, (40, 80), "channel")
    matrix.tensors["weight"].view(torch.uint8)[17, 3] = bits
    options = compressed("float-quantized", FP8 | {"strategy": "channel"})
    source = open_folder(Checkpoint(options, {Q: matrix}).write(tmp_path / "m"))
    for read in (source.quantized, lambda name: source.copy_into(name, torch.empty(40, 80))):
        with pytest.raises(InvalidArgument, match=rf"m: {Q} has codes that are no finite numbers"):
            read(f"{Q}.weight")


def test_a_global_scale_beyond_fp32_is_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    matrix = packing.floats4(rng, (7, 64), "nvfp4")
    matrix.tensors["weight_global_scale"] = torch.tensor([1e-42])
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    options = compressed("nvfp4-pack-quantized", weights)
    source = open_folder(Checkpoint(options, {Q: matrix}).write(tmp_path / "m"))
    with pytest.raises(InvalidArgument, match=rf"{Q} has global scales that are no finite numbers"):
        source.quantized(f"{Q}.weight")


def test_a_weight_without_inputs_is_refused(tmp_path: Path) -> None:
    tensors = {"weight": torch.zeros(4, 0, dtype=torch.int8), "weight_scale": torch.ones(4, 1)}
    options = compressed("int-quantized", INT8 | {"strategy": "channel"})
    folder = Checkpoint(options, {Q: Matrix(tensors, np.zeros((4, 0)))}).write(tmp_path / "m")
    with pytest.raises(InvalidArgument, match=rf"{Q}: a weight of 4 outputs has no inputs"):
        open_folder(folder).quantized(f"{Q}.weight")


# ---- GPTQ, AWQ, block FP8 --------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize(("group", "act_order"), [(32, False), (32, True), (-1, False)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq(
    rng: np.random.Generator,
    tmp_path: Path,
    bits: int,
    v2: bool,
    group: int,
    act_order: bool,
    symmetric: bool,
) -> None:
    how = {"symmetric": symmetric, "act_order": act_order, "v2": v2}
    options = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order}
    if v2:
        options["checkpoint_format"] = "gptq_v2"
    weight = _read(tmp_path, options, packing.gptq(rng, (24, 96), bits, group, **how))
    assert (weight.offset is None) == symmetric
    assert (weight.in_order is None) != act_order


def test_gptq_zero_biases_may_go_unused(rng: np.random.Generator, tmp_path: Path) -> None:
    matrix = packing.gptq(rng, (8, 64), 4, 32)
    others = {f"{Q}.bias": torch.zeros(8), f"{K}.bias": torch.ones(8)}
    options = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    modules = {Q: matrix, K: packing.gptq(rng, (8, 64), 4, 32)}
    source = open_folder(Checkpoint(options, modules, others).write(tmp_path / "m"))
    wanted = {f"{Q}.weight": (8, 64), f"{K}.weight": (8, 64)}
    with pytest.raises(InvalidArgument, match=rf"unexpected: {K}\.bias$"):
        check_complete(source, wanted)
    check_complete(source, wanted | {f"{Q}.bias": (8,), f"{K}.bias": (8,)})


@pytest.mark.parametrize(("shape", "group"), [((16, 96), 32), ((8, 40), 40)])
def test_awq(rng: np.random.Generator, tmp_path: Path, shape: tuple[int, int], group: int) -> None:
    options = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    weight = _read(tmp_path, options, packing.awq(rng, shape, group))
    assert weight.offset is not None


def test_block_fp8(rng: np.random.Generator, tmp_path: Path) -> None:
    options = {"quant_method": "fp8", "weight_block_size": [16, 32], "activation_scheme": "dynamic"}
    weight = _read(tmp_path, options, packing.floats8(rng, (40, 80), (16, 32), "weight_scale_inv"))
    assert (weight.group, weight.activations) == (32, "fp8")


# ---- all of them -----------------------------------------------------------------------------------------


def test_parts_become_one_matrix(rng: np.random.Generator, tmp_path: Path) -> None:
    options = compressed("pack-quantized", _PACKED)
    modules = {m: packing.packed_ints(rng, (n, 96), 4, 32, True) for m, n in ((Q, 16), (K, 8))}
    source = open_folder(Checkpoint(options, modules).write(tmp_path / "m"))
    names = [f"{Q}.weight", f"{K}.weight"]
    wanted = np.concatenate([modules[m].values for m in (Q, K)])
    joined = load_matrix(source, names, storage("auto", torch.float32))
    assert isinstance(joined, QuantizedWeight)
    np.testing.assert_allclose(dequantize(joined).numpy(), wanted, rtol=1e-5)
    dense = load_matrix(source, names, storage("none", torch.bfloat16))
    assert isinstance(dense, torch.Tensor)
    assert dense.dtype is torch.bfloat16
    np.testing.assert_allclose(dense.float().numpy(), wanted, rtol=5e-3)
    other = load_matrix(source, names, storage("int8", torch.float32))
    assert isinstance(other, QuantizedWeight)
    assert other.kind is Codes.INT8


def test_parts_that_do_not_fit_together_become_dense_and_the_log_says_so(
    rng: np.random.Generator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    modules = {m: packing.gptq(rng, (8, 96), 4, 32, act_order=seed) for seed, m in enumerate((Q, K), 1)}
    source = open_folder(Checkpoint(options, modules).write(tmp_path / "m"))
    with caplog.at_level(logging.WARNING, "baton"):
        dense = load_matrix(source, [f"{Q}.weight", f"{K}.weight"], storage("auto", torch.float32))
    assert isinstance(dense, torch.Tensor)
    assert "inputs in different orders" in caplog.text
    load_matrix(source, [f"{Q}.weight", f"{K}.weight"], storage("auto", torch.float32))
    assert len(caplog.messages) == 1, "told once for all layers"
    wanted = np.concatenate([modules[m].values for m in (Q, K)])
    np.testing.assert_allclose(dense.numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_kv_scales_are_told_of_and_go_unused(
    rng: np.random.Generator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"model.layers.0.self_attn.k_scale": torch.ones(1), f"{K}.output_scale": torch.ones(1)}
    modules = {Q: packing.packed_ints(rng, (16, 96), 4, 32, True)}
    folder = Checkpoint(compressed("pack-quantized", _PACKED), modules, others).write(tmp_path / "m")
    with caplog.at_level(logging.INFO, "baton"):
        source = open_folder(folder)
    assert "2 KV scales are not used" in caplog.text
    check_complete(source, {f"{Q}.weight": (16, 96)})


def test_digest_follows_what_the_codes_mean(rng: np.random.Generator, tmp_path: Path) -> None:
    modules = {Q: packing.gptq(rng, (8, 64), 4, 32)}
    options = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    digests = set()
    for name, changed in (("a", options), ("b", options), ("c", options | {"checkpoint_format": "gptq_v2"})):
        source = open_folder(Checkpoint(changed, modules).write(tmp_path / name))
        assert isinstance(source, QuantizedFolder)
        digests.add(source.digest())
    assert len(digests) == 2
