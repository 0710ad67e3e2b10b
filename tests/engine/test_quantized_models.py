"""Whole quantised checkpoints through the loader and the runner, against the same values held dense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.core.errors import InvalidArgument
from baton.engine.config import EngineConfig
from baton.engine.eval.perplexity import Windows, blocks_for, perplexity
from baton.engine.loader import load
from tests.engine import packing
from tests.engine.packing import Matrix
from tests.models import VOCAB_SIZE, write_model

Make = Callable[[np.random.Generator, tuple[int, int]], Matrix]
WINDOWS = Windows(24, 12)
_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
}
_CHANNEL = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
_FLOAT = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def _compressed(form: str, group: dict[str, Any], activations: Any = None) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group | {"input_activations": activations}},
    }


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
# Name: (quantization_config, maker of a matrix, how far logprobs may be from the dense model's)
CHECKPOINTS: dict[str, tuple[dict[str, Any], Make, float]] = {
    "int4": (
        _compressed("pack-quantized", _GROUP),
        lambda r, s: packing.packed_ints(r, s, 4, 32, True),
        1e-3,
    ),
    "fp8": (_compressed("float-quantized", _FLOAT), lambda r, s: packing.floats8(r, s, "channel"), 1e-3),
    # Matrices of the same inputs have the same order: it comes from the inputs' statistics.
    "gptq": (_GPTQ, lambda r, s: packing.gptq(r, s, 4, 32, act_order=s[1]), 1e-3),
    "awq": (_AWQ, lambda r, s: packing.awq(r, s, 32), 1e-3),
    "w8a8": (
        _compressed("int-quantized", _CHANNEL, _TOKEN),
        lambda r, s: packing.plain_ints(r, s, "channel", True),
        0.1,
    ),
}


def _checkpoints(original: Path, tmp_path: Path, options: dict[str, Any], make: Make) -> tuple[Path, Path]:
    """The same model twice: quantised, and dense."""
    tensors = load_file(original / "model.safetensors")
    rng = np.random.default_rng(5)
    dense, stored = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            matrix = make(rng, (tensor.shape[0], tensor.shape[1]))
            # The tiny model needs weights of this size for its context to matter.
            dense[name] = torch.from_numpy(matrix.values).float()
            del stored[name]
            module = name.removesuffix(".weight")
            stored |= {f"{module}.{suffix}": t.contiguous() for suffix, t in matrix.tensors.items()}
    config = json.loads((original / "config.json").read_text())
    for name, held in (("dense", dense), ("stored", stored)):
        folder = tmp_path / name
        folder.mkdir()
        for path in original.glob("*.json"):
            (folder / path.name).write_bytes(path.read_bytes())
        save_file(held, folder / "model.safetensors", {"format": "pt"})
    (tmp_path / "stored" / "config.json").write_text(json.dumps(config | {"quantization_config": options}))
    return tmp_path / "stored", tmp_path / "dense"


def _nll(folder: Path, quantization: str = "auto") -> tuple[float, int]:
    loaded = load(EngineConfig(str(folder), quantization=quantization, max_model_len=24))
    token_ids = torch.randint(0, VOCAB_SIZE, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    found = perplexity(loaded.runner(blocks_for(WINDOWS, 16)), token_ids, WINDOWS, block_size=16)
    return found.nll, loaded.weights_bytes


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("t") / "T", "T")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_runs_as_stored_and_dequantised(name: str, original: Path, tmp_path: Path) -> None:
    options, make, tolerance = CHECKPOINTS[name]
    stored, dense = _checkpoints(original, tmp_path, options, make)
    wanted, dense_bytes = _nll(dense)
    found, bytes_as_stored = _nll(stored)
    assert found == pytest.approx(wanted, abs=tolerance)
    assert bytes_as_stored < 0.6 * dense_bytes
    dequantised, bytes_dequantised = _nll(stored, "none")
    assert dequantised == pytest.approx(wanted, abs=1e-4)
    assert bytes_dequantised == dense_bytes


def test_its_fingerprint_says_how_it_is_held(original: Path, tmp_path: Path) -> None:
    options, make, _ = next(iter(CHECKPOINTS.values()))
    stored, _ = _checkpoints(original, tmp_path, options, make)
    as_stored, dequantised, anew = (
        load(EngineConfig(str(stored), quantization=word)).fingerprint for word in ("auto", "none", "int8")
    )
    assert as_stored.differing(dequantised) == ["quantization (auto against none)"]
    assert anew.differing(as_stored) == ["quantization (int8 against auto)"]


@pytest.mark.parametrize("biased", ["q", "k", "qkv"])
def test_spare_biases_of_some_joined_parts_are_left_alone(
    original: Path, tmp_path: Path, biased: str
) -> None:
    options, make, _ = CHECKPOINTS["gptq"]
    stored, _ = _checkpoints(original, tmp_path, options, make)
    without = _nll(stored)
    tensors = load_file(stored / "model.safetensors")
    for part in biased:
        outputs = tensors[f"model.layers.0.self_attn.{part}_proj.qweight"].shape[1]
        tensors[f"model.layers.0.self_attn.{part}_proj.bias"] = torch.zeros(outputs)
    save_file(tensors, stored / "model.safetensors", {"format": "pt"})
    assert _nll(stored) == without


def test_a_dense_checkpoint_is_quantised_when_it_is_loaded(original: Path) -> None:
    wanted, dense_bytes = _nll(original)
    for quantization, share in (
        ("int8", 0.3),
        ("int8-w8a8", 0.3),
        ("int4", 0.25),
        ("nvfp4", 0.25),
        ("fp8", 0.3),
    ):
        found, held = _nll(original, quantization)
        assert held < share * dense_bytes, quantization
        assert found != wanted


def test_models_that_transformers_runs_take_no_quantised_checkpoint(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "gpt_neox", "gpt_neox")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = _compressed("pack-quantized", _GROUP)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidArgument, match="gpt_neox"):
        load(EngineConfig(str(folder)))
