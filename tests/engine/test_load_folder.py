"""Hugging Face folders: facts, fingerprints, memory, and every way in which one can be broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.core.errors import InvalidArgument
from baton.core.kvcache import KvCache
from baton.engine.config import EngineConfig
from baton.engine.loader import LoadedModel, load
from baton.kernels import native
from tests.engine.driver import Driver
from tests.models import BOS_ID, EOS_ID, VOCAB_SIZE, prompt_of, write_model

Edit = Callable[[dict[str, torch.Tensor]], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("t") / "T", "T")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def _load(folder: Path, **options: Any) -> LoadedModel:
    return load(EngineConfig(str(folder), **options))


def _edit_weights(folder: Path, edit: Edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_facts(folder: Path) -> None:
    loaded = _load(folder, block_size=4)
    assert (loaded.layers, loaded.kv_heads, loaded.head_dim) == (4, 2, 16)
    assert (loaded.vocab_size, loaded.max_positions) == (VOCAB_SIZE, 512)
    assert loaded.eos_token_ids == (EOS_ID, BOS_ID)
    assert loaded.path == folder
    assert loaded.kv_token_bytes == 4 * 2 * 2 * 16 * 4
    assert loaded.kv_shape(7).dims == (7, 4, 2, 4, 2, 16)


def test_fingerprint_tells_models_apart(folder: Path, tmp_path: Path) -> None:
    mine = _load(folder).fingerprint
    assert mine == _load(folder, block_size=4).fingerprint
    other_seed = _load(write_model(tmp_path / "seed", "T", seed=1)).fingerprint
    assert [item.split()[0] for item in mine.differing(other_seed)] == ["weights"]
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|im_end|>", "<|im_fin|>"))
    assert [item.split()[0] for item in mine.differing(_load(folder).fingerprint)] == ["tokenizer"]
    _edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert "rope=default:500" in _load(folder).fingerprint.geometry


def test_fingerprint_tells_arithmetic_apart(folder: Path) -> None:
    """What is done, not what was asked for: nothing is quantised in this folder."""
    mine = _load(folder).fingerprint
    assert (mine.quantization, mine.dtype) == ("none", "float32")
    assert mine == _load(folder, quantization="none", dtype="float32", kv_dtype="int8").fingerprint

    def differing(**settings: str) -> list[str]:
        return mine.differing(_load(folder, **settings).fingerprint)

    assert differing(quantization="int8") == ["quantization (none against int8)"]
    assert differing(quantization="int8", dtype="bfloat16") == ["quantization (none against int8)"]
    assert differing(dtype="bfloat16") == ["dtype (float32 against bfloat16)"]


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
def test_fingerprint_tells_versions_of_kernels_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = _load(folder).fingerprint
    told = f"native {native.REVISION}"
    torchs = _load(folder, backend="torch").fingerprint
    assert mine.differing(torchs) == [f"kernels ({told} against torch {torch.__version__})"]
    monkeypatch.setattr(native, "REVISION", native.REVISION + 1)
    newer = f"native {native.REVISION}"
    assert mine.differing(_load(folder).fingerprint) == [f"kernels ({told} against {newer})"]


def test_shards_are_read_as_one(folder: Path) -> None:
    whole = _load(folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (i % 3)}-of-00003.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert _load(folder).fingerprint == whole.fingerprint
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InvalidArgument, match=r"names model-00002-of-00003\.safetensors, which is not there"):
        _load(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a"}}))
    with pytest.raises(InvalidArgument, match="no weight_map"):
        _load(folder)


def test_other_dtypes_are_converted(folder: Path) -> None:
    _edit_weights(folder, lambda t: t.update({name: v.bfloat16() for name, v in t.items()}))
    matrices = sum(v.numel() for v in load_file(folder / "model.safetensors").values() if v.dim() > 1)
    assert _load(folder, dtype="float32").weights_bytes == pytest.approx(4 * matrices, rel=0.03)
    assert _load(folder, backend="torch").weights_bytes == pytest.approx(4 * matrices, rel=0.03)
    assert _load(folder, dtype="bfloat16").weights_bytes == pytest.approx(2 * matrices, rel=0.03)


@pytest.mark.skipif(not native.available(), reason="no native kernels here")
@pytest.mark.parametrize("variant", ["T", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_held_as_such_and_give_the_same_bits(
    variant: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / variant, variant)
    plain = _load(folder)
    assert plain.weights_bytes == _load(folder, dtype="float32").weights_bytes
    _edit_weights(folder, lambda t: t.update({name: v.to(dtype) for name, v in t.items()}))
    narrow, wide = _load(folder), _load(folder, dtype="float32")
    assert narrow.weights_bytes < 0.52 * wide.weights_bytes
    assert narrow.fingerprint == wide.fingerprint
    told = [
        Driver(loaded.runner(40), KvCache(40, 16), chunk=7).generate([prompt_of(23), prompt_of(3)], 4)
        for loaded in (narrow, wide)
    ]
    results = [[(one.output, one.logprobs) for one in lives] for lives in told]
    assert results[0] == results[1]


def test_one_number_of_more_bits_keeps_its_matrix_wide(folder: Path) -> None:
    _edit_weights(folder, lambda t: t.update({name: v.bfloat16().float() for name, v in t.items()}))
    narrow = _load(folder).weights_bytes
    name = "model.layers.2.self_attn.o_proj.weight"
    _edit_weights(folder, lambda t: t[name].view(-1)[-1:].fill_(1 + 2**-20))
    wide = load_file(folder / "model.safetensors")[name].numel() if _load(folder).backend == "native" else 0
    assert _load(folder).weights_bytes == narrow + 2 * wide


def test_weights_are_held_once(tmp_path: Path) -> None:
    loaded = _load(write_model(tmp_path / "tied", "tied"))
    decoder = loaded.model.decoder
    assert decoder.head is decoder.embedding
    stored = load_file(tmp_path / "tied" / "model.safetensors")
    bare = sum(value.nbytes for value in stored.values() if value.dim() > 1)
    assert bare <= loaded.weights_bytes < 1.01 * bare  # panels are filled up


GROWTH = """
import ctypes, gc, re, sys
import torch
from pathlib import Path
from baton.engine.config import EngineConfig
from baton.engine.loader import load

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return 1024 * int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

small, large, quantization = sys.argv[1:]
load(EngineConfig(small, quantization=quantization, threads=1))  # brings in what any model needs
before = resident()
loaded = load(EngineConfig(large, quantization=quantization, threads=1))
print(loaded.weights_bytes, resident() - before)
copy = torch.ones(sum(p.stat().st_size for p in Path(large).glob("*.safetensors")) // 4)
print(copy.nbytes, resident() - before)
"""


def test_no_other_copy_of_the_weights_stays(original: Path, tmp_path: Path) -> None:
    """By what a process of its own has in memory: nothing as large as the weights in fp32 comes on top."""
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 2}
    large = write_model(tmp_path / "large", "T", **sizes)
    for quantization in ("none", "int8"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", GROWTH, str(original), str(large), quantization],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        (held, grown), (copy, with_copy) = (map(int, line.split()) for line in done.stdout.splitlines())
        assert held <= grown + 2**20
        assert grown < held + copy / 2, quantization
        assert with_copy > held + copy / 2, "a copy would be seen"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing: model.norm.weight"),
        (
            lambda t: t.pop("model.layers.3.self_attn.k_proj.weight"),
            r"missing: model\.layers\.3\.self_attn\.k_proj\.weight",
        ),
        (lambda t: t.update(surplus=torch.zeros(2)), "unexpected: surplus"),
        (
            lambda t: t.update({"lm_head.weight": torch.zeros(5, 96)}),
            r"wrong shape: lm_head\.weight is \[5, 96\], not \[331, 96\]",
        ),
        (
            lambda t: [t.pop(name) for name in list(t) if "mlp" in name],
            r"missing: model\.layers\.0\.mlp\.gate_proj\.weight, .* and 7 more",
        ),
    ],
)
def test_incomplete_weights_are_refused_by_name(folder: Path, edit: Edit, message: str) -> None:
    _edit_weights(folder, edit)
    with pytest.raises(InvalidArgument, match=message) as caught:
        _load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("variant", ["gpt_neox", "gemma2"])
def test_incomplete_weights_of_hooked_models_are_refused_too(variant: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / variant, variant)
    name = sorted(n for n in load_file(folder / "model.safetensors") if "layers.2" in n)[0]
    _edit_weights(folder, lambda t: t.pop(name))
    with pytest.raises(InvalidArgument, match=f"missing: .*{name}"):
        _load(folder)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: _truncate(f / "model.safetensors"), "not a whole safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "not a whole safetensors file"),
        (lambda f: (f / "model.safetensors").unlink(), "holds neither model.safetensors nor"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "pytorch_model.bin is a pickle",
        ),
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot read .*config.json"),
        (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object"),
        (lambda f: _edit_config(f, model_type="frobnicator"), "model_type 'frobnicator'.* not known"),
        (lambda f: _edit_config(f, model_type="t5"), "cannot be (loaded|run)|not a valid"),
        (lambda f: _edit_config(f, num_key_value_heads=4), "6 query heads cannot share 4"),
        (lambda f: _edit_config(f, num_hidden_layers=5), "missing: model.layers.4"),
        (lambda f: _edit_config(f, num_hidden_layers=3), "unexpected: model.layers.3"),
        (lambda f: _edit_config(f, head_dim=24), "wrong shape: .*q_proj"),
        (lambda f: _edit_config(f, rope_parameters={"rope_type": "yarn"}), "yarn"),
        (lambda f: (f / "generation_config.json").write_text('{"eos_token_id": 4000}'), "outside"),
    ],
)
def test_broken_folders_are_refused(folder: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(folder)
    with pytest.raises(InvalidArgument, match=message) as caught:
        _load(folder)
    assert str(folder) in str(caught.value)


def test_models_that_need_more_than_paged_attention_are_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match="bloom"):
        _load(tmp_path)


def test_a_step_of_no_layers_between_experts_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "qwen3_moe", "qwen3_moe")
    _edit_config(folder, decoder_sparse_step=0)
    with pytest.raises(InvalidArgument, match=rf"{folder}: decoder_sparse_step must be 1 or more, got 0"):
        _load(folder)


def test_end_tokens_are_looked_at_before_any_weight(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": 4000}')
    monkeypatch.setattr("baton.engine.loader.load_decoder", lambda *args: pytest.fail("weights are read"))
    with pytest.raises(InvalidArgument, match="end tokens"):
        _load(folder)
