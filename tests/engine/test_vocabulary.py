"""The digest by which routers and nodes tell whether they mean the same tokens."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest

from baton.core.errors import InvalidArgument
from baton.engine.weights.locate import locate
from baton.engine.weights.vocabulary import tokenizer_digest
from tests.tokenizers_t import write_tokenizer

TOKENS = ["<s>", "a", "b", "ab"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def write_gguf(path: Path, *, other: str = "x", **changes: Any) -> str:
    """Write a vocabulary, with these changes by key; its digest."""
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "merges": ["a b"],
        "token_type": [3, 1, 1, 1],
    }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", other)
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_string("tokenizer.chat_template", other)
    for key, value in (values | changes).items():
        add = writer.add_string if isinstance(value, str) else writer.add_array
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokenizer_digest(path)


def test_folders_with_the_same_tokenizer_have_one_digest(folder: Path, tmp_path_factory: Any) -> None:
    copy = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, copy)
    config = copy / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{", '{"chat_template": "another", ', 1))
    assert tokenizer_digest(copy) == tokenizer_digest(folder)
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|im_end|>", "<|im_fin|>"))
    assert tokenizer_digest(copy) != tokenizer_digest(folder)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert tokenizer_digest(tmp_path) == "none"


def test_a_gguf_files_digest_is_that_of_its_vocabulary(tmp_path: Path) -> None:
    mine = write_gguf(tmp_path / "a.gguf")
    assert write_gguf(tmp_path / "b.gguf", other="another name and template") == mine
    others = [
        write_gguf(tmp_path / "c.gguf", **change)
        for change in (
            {"tokens": ["<s>", "b", "a", "ab"]},
            {"tokens": ["<s>", "a", "ba", "b"]},
            {"merges": ["b a"]},
            {"pre": "llama-bpe"},
            {"token_type": [3, 1, 1, 4]},
            {"scores": [0.0, 1.0, 2.0, 3.0]},
        )
    ]
    assert len({mine, *others}) == 7


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    whole = (tmp_path / "a.gguf").read_bytes()
    for size in range(0, len(whole) - 1, 7):
        (tmp_path / "short.gguf").write_bytes(whole[:size])
        with pytest.raises(InvalidArgument, match=r"short\.gguf"):
            tokenizer_digest(tmp_path / "short.gguf")


def test_it_is_cheap_and_loads_no_tensor_library() -> None:
    """In a process of its own: what a router adds to its start."""
    path = str(locate("demo"))
    code = (
        "import sys; from pathlib import Path; from baton.engine.weights.vocabulary import tokenizer_digest\n"
        f"print(tokenizer_digest(Path({path!r})), *({{'torch', 'numpy', 'gguf'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [tokenizer_digest(Path(path))]
    start_s = time.thread_time()
    tokenizer_digest(Path(path))
    assert time.thread_time() - start_s < 0.3
