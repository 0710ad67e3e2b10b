"""Tokenizers from files: folders, the demo's GGUF, and files that are broken."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from baton.core.errors import InvalidArgument
from baton.engine.weights.gguf_meta import read_metadata
from baton.router.text import load_tokenizer
from tests.router.text.codecs import codec, demo_path
from tests.tokenizers_t import CHAT_TEMPLATE, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def test_a_folder(folder: Path) -> None:
    one = load_tokenizer(str(folder))
    assert (one.vocab_size, one.bos_token_id, one.eos_token_ids) == (331, 0, (2,))
    assert one.special_ids == {0, 1, 2}
    assert one.encode_chat([("user", "x")]) == one.encode(
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )


def test_every_end_token_counts(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 9]}))
    assert load_tokenizer(str(folder)).eos_token_ids == (7, 2, 9)
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert load_tokenizer(str(folder)).eos_token_ids == (5, 2)


def test_a_template_file_goes_before_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    one = load_tokenizer(str(folder))
    assert one.decode(one.encode_chat([("user", "x")])) == "x!"


def test_named_templates(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": CHAT_TEMPLATE},
    ]
    config["add_bos_token"] = True
    config["eos_token"] = {"content": "<|im_end|>", "lstrip": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    one = load_tokenizer(str(folder))
    assert one.encode_chat([("user", "x")])[:2] == [0, 1]
    assert one.encode("x")[0] == 0
    assert one.eos_token_ids == (2,)


def test_the_demo_loads_in_two_seconds() -> None:
    start = time.process_time()
    one = load_tokenizer(str(demo_path()))
    assert time.process_time() - start < 2.0  # about 0.2 s
    assert (one.vocab_size, one.eos_token_ids, len(one.special_ids)) == (49152, (2,), 17)
    assert one.encode("Hello 12") == [19556, 216, 33, 34]  # digits one by one, as the model was trained
    assert one.encode("") == []


def test_the_demo_tokenizes_as_transformers_where_that_knows_how() -> None:
    """Golden ids from transformers 5.24. Its converter does not split digits, so they hold none."""
    one = codec("demo")
    assert one.encode("Hello, world!") == [19556, 28, 905, 17]
    assert one.encode("  two  spaces\n\nand lines") == [216, 827, 216, 5600, 198, 198, 397, 3204]
    assert one.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    korean = [33085, 246, 181, 130, 251, 183, 240, 129, 47526, 1326, 982]
    assert one.encode("한국어 🙂 don't") == korean
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert one.encode_chat([("user", "hi")]) == one.encode(turns + "<|im_start|>assistant\n")


def test_metadata_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "t.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {"a": [1, -2, 3], "b": ["x", "한", ""], "c": [0.5, 1.5], "d": [True, False]}
    for key, value in values.items():
        writer.add_array(key, value)
    writer.add_string("s", "text\n")
    writer.add_float32("f", 0.25)
    writer.add_bool("t", True)
    writer.add_uint64("u", 2**40)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    meta = read_metadata(path)
    assert {key: meta[key] for key in values} == values
    assert (meta["s"], meta["f"], meta["t"], meta["u"]) == ("text\n", 0.25, True, 2**40)


def test_broken_files_are_named(tmp_path: Path, folder: Path) -> None:
    whole = demo_path().read_bytes()[:200_000]
    cases = {"short.gguf": whole, "empty.gguf": b"", "other.gguf": b"PK\x03\x04" * 100}
    cases["huge.gguf"] = whole[:16] + b"\xff" * 64
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidArgument, match=name) as caught:
            load_tokenizer(str(tmp_path / name))
        assert caught.value.field == "model"
    with pytest.raises(InvalidArgument, match="nowhere"):
        load_tokenizer(str(tmp_path / "nowhere"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InvalidArgument, match=r"tokenizer\.json"):
        load_tokenizer(str(folder))
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(InvalidArgument, match=r"tokenizer_config\.json"):
        load_tokenizer(str(folder))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.field == "model"
