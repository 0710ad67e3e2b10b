"""GGUF files written here, of each architecture, and broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from baton.core.errors import InvalidArgument
from baton.engine.config import EngineConfig
from baton.engine.loader import load
from tests.engine.held import values
from tests.models import VOCAB_SIZE, write_model

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, index, rest = stem.split(".", 3)
        return f"blk.{index}.{_NAMES[rest]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """The order of llama.cpp's converter: halves of a head interleaved."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    tensors: dict[str, torch.Tensor],
    architecture: str = "llama",
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    **changes: Any,
) -> Path:
    """A Model T as a GGUF file. kinds: how to store tensors with this in their names, F32 unless given.
    changes: metadata keys (dots as __) to set, or None to leave out."""
    meta: dict[str, Any] = {
        "block_count": 4,
        "context_length": 512,
        "embedding_length": 96,
        "feed_forward_length": 160,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
    }
    meta |= {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in meta.items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{architecture}.{key}", value)
    writer.add_token_list([f"t{i}" for i in range(VOCAB_SIZE)])
    writer.add_eos_token_id(2)
    for name, tensor in tensors.items():
        rows = tensor.float().numpy()
        heads = 6 if "q_proj" in name else 2 if "k_proj" in name else 0
        if architecture == "llama" and heads:
            rows = _permuted(rows, heads)
        kind = next((k for part, k in (kinds or {}).items() if part in name), None)
        rows = np.ascontiguousarray(rows) if kind is None else gguf.quantize(rows, kind)
        writer.add_tensor(_gguf_name(name) if "." in name else name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(tmp_path: Path, variant: str) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = write_model(tmp_path / variant, variant)
    return folder, load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("variant", "architecture"), [("T", "llama"), ("tied", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_holds_what_the_folder_holds(variant: str, architecture: str, tmp_path: Path) -> None:
    folder, tensors = _tensors(tmp_path, variant)
    file = write_gguf(tmp_path / "model.gguf", tensors, architecture)
    ours, theirs = load(EngineConfig(str(file))), load(EngineConfig(str(folder)))
    assert ours.geometry == theirs.geometry
    assert ours.eos_token_ids == (2,)
    one, other = ours.model.decoder, theirs.model.decoder
    assert (one.head is one.embedding) == (variant == "tied")
    for mine, wanted in zip(values(one), values(other), strict=True):
        torch.testing.assert_close(mine, wanted, atol=0, rtol=0)


def test_digest_follows_the_contents(tmp_path: Path) -> None:
    _, tensors = _tensors(tmp_path, "T")
    first = load(EngineConfig(str(write_gguf(tmp_path / "a.gguf", tensors)))).fingerprint
    assert first == load(EngineConfig(str(write_gguf(tmp_path / "b.gguf", tensors)))).fingerprint
    tensors["model.norm.weight"][5] += 1e-3
    other = load(EngineConfig(str(write_gguf(tmp_path / "c.gguf", tensors)))).fingerprint
    assert [item.split()[0] for item in first.differing(other)] == ["weights"]


def test_rope_factors_and_scaling(tmp_path: Path) -> None:
    _, tensors = _tensors(tmp_path, "T")
    scaled = write_gguf(tmp_path / "a.gguf", tensors, rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert "rope=linear:10000(factor=4)" in load(EngineConfig(str(scaled))).geometry
    tensors["rope_freqs.weight"] = torch.arange(1, 9).float()
    _NAMES["rope_freqs"] = "rope_freqs"
    factors = write_gguf(tmp_path / "b.gguf", tensors)
    assert "factors:10000(factors=1/2/3/4/5/6/7/8)" in load(EngineConfig(str(factors))).geometry


@pytest.mark.parametrize("keep", [0, 3, 50, 700, 20_000, -8000, -40])
def test_truncated_files_are_refused(keep: int, tmp_path: Path) -> None:
    _, tensors = _tensors(tmp_path, "T")
    file = write_gguf(tmp_path / "model.gguf", tensors)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InvalidArgument, match=r"model\.gguf"):
        load(EngineConfig(str(file)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, "lacks the metadata key llama.block_count"),
        ({"block_count": 5}, "missing: model.layers.4"),
        ({"block_count": 3}, "unexpected: model.layers.3"),
        ({"attention__head_count_kv": 3}, r"wrong shape: .*k_proj\.weight is \[32, 96\], not \[48, 96\]"),
        ({"rope__dimension_count": 8}, "rotates 8 of 16 dimensions"),
        ({"rope__scaling__type": "spiral"}, "rope type 'spiral'"),
    ],
)
def test_wrong_metadata_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, tensors = _tensors(tmp_path, "T")
    with pytest.raises(InvalidArgument, match=message):
        load(EngineConfig(str(write_gguf(tmp_path / "model.gguf", tensors, **changes))))


def test_missing_tensors_and_unknown_architectures_are_refused(tmp_path: Path) -> None:
    _, tensors = _tensors(tmp_path, "T")
    other = write_gguf(tmp_path / "other.gguf", tensors, "mamba")
    with pytest.raises(InvalidArgument, match=r"other.gguf holds architecture 'mamba'; known are llama"):
        load(EngineConfig(str(other)))
    del tensors["model.layers.2.mlp.down_proj.weight"]
    lacking = write_gguf(tmp_path / "lacking.gguf", tensors)
    with pytest.raises(InvalidArgument, match=r"lacking.gguf .* missing: .*2.mlp.down_proj.weight"):
        load(EngineConfig(str(lacking)))
