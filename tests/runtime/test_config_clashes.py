"""Values that are right one by one and do not fit together: refused, with the place of one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.runtime.config import load_config
from tests.runtime.config_files import env_name, nested, refused, write


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "prefill: {engine: {quantization: int8}}",
            "quantization is int8 in prefill.engine, auto in decode.engine: nodes whose weights differ",
        ),
        (
            "decode: {count: 1, engine: {quantization: fp8}}\nboth: {count: 1, engine: {quantization: none}}",
            "quantization is fp8 in decode.engine, none in both.engine",
        ),
        ("decode: {engine: {dtype: bfloat16}}", "bfloat16 on some nodes and float32 on others"),
        ("decode: {devices: ['cuda:0']}", "bfloat16 on some nodes and float32 on others"),
    ],
)
def test_nodes_that_would_give_different_tokens_are_refused(text: str, told: str, tmp_path: Path) -> None:
    said = refused(write(tmp_path, text))
    assert told in said
    assert said.count("\n") == 0


@pytest.mark.parametrize(
    "text",
    [
        "prefill: {engine: {kv_dtype: int8}}\ndecode: {engine: {kv_dtype: fp8}}",
        "prefill: {engine: {dtype: float32}}",  # what auto is on a CPU
        "engine: {dtype: bfloat16}\ndecode: {devices: ['cuda:0']}",
        "both: {count: 1}\ndecode: {engine: {quantization: int8}}",  # no such node here
    ],
)
def test_nodes_that_give_the_same_tokens_may_differ_otherwise(text: str, tmp_path: Path) -> None:
    load_config(write(tmp_path, text))


CLASHES = [
    (
        {},
        "prefill.engine.quantization",
        "int8",
        "quantization is int8 in prefill.engine, auto in decode.engine",
    ),
    ({"decode.engine.quantization": "int8"}, "engine.quantization", "fp8", "quantization is fp8 in prefill"),
    ({}, "decode.engine.dtype", "bfloat16", "weights would be bfloat16 on some nodes"),
    ({}, "decode.devices", "cuda:0", "weights would be bfloat16 on some nodes"),
    ({"engine.kv_memory": "1GiB"}, "engine.num_blocks", "9", "num_blocks and kv_memory are both set"),
    ({"both.engine.num_blocks": "9"}, "both.engine.kv_memory", "1GiB", "num_blocks and kv_memory are both"),
    ({}, "router.processes", "0", "`registries` must name a router"),
    ({"prefill.count": "0"}, "router.processes", "0", "there is nothing to start"),
]


@pytest.mark.parametrize(("others", "key", "word", "told"), CLASHES)
class TestClashes:
    """Values that are right one by one: told where one of them was written, never as `defaults`."""

    def test_by_flag(self, others: dict[str, str], key: str, word: str, told: str) -> None:
        said = refused(flags=others | {key: word})
        assert said.count("\n") == 0
        assert said.startswith(tuple(f"flag {written}: " for written in (key, *others)))
        assert told in said

    def test_by_environment(self, others: dict[str, str], key: str, word: str, told: str) -> None:
        said = refused(environ={env_name(name): text for name, text in (others | {key: word}).items()})
        assert said.startswith(tuple(f"environment {env_name(written)}: " for written in (key, *others)))
        assert told in said

    def test_by_file(self, tmp_path: Path, others: dict[str, str], key: str, word: str, told: str) -> None:
        path = write(tmp_path, nested(key, f"[{word}]" if key.endswith("devices") else word))
        line, column = len(key.split(".")), 2 * key.count(".") + len(key.split(".")[-1]) + 3
        said = refused(path, flags=others)
        assert said.startswith((f"{path}:{line}:{column}: ", *(f"flag {written}: " for written in others)))
        assert told in said


@pytest.mark.parametrize(
    ("lower", "upper", "blamed"),
    [
        ("engine.quantization", "decode.engine.quantization", "decode.engine.quantization"),
        ("decode.engine.quantization", "engine.quantization", "decode.engine.quantization"),
        ("engine.num_blocks", "engine.kv_memory", "engine.num_blocks"),
    ],
)
def test_of_keys_that_clash_the_most_particular_is_named(lower: str, upper: str, blamed: str) -> None:
    words = {"engine.quantization": "int8", "decode.engine.quantization": "fp8"}
    words |= {"engine.num_blocks": "9", "engine.kv_memory": "1GiB"}
    said = refused(environ={env_name(lower): words[lower]}, flags={upper: words[upper]})
    assert said.startswith(f"environment {env_name(blamed)}: " if blamed == lower else f"flag {blamed}: ")


def test_a_clash_of_what_was_overridden_is_told_where_it_is_in_force(tmp_path: Path) -> None:
    path = write(tmp_path, "prefill: {engine: {quantization: auto}}\n")
    said = refused(path, flags={"prefill.engine.quantization": "int8"})
    assert said.startswith("flag prefill.engine.quantization: quantization is int8")
