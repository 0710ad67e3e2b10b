"""Settings: what is written is what is in force, or the start is stopped with the place of the mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from baton.core.load import Role
from baton.engine.config import BACKENDS
from baton.engine.weights.matrix import QUANTIZATIONS
from baton.runtime import launcher
from baton.runtime.config import (
    ClusterConfig,
    ConfigError,
    effective_json,
    from_json,
    json_schema,
    load_config,
)
from baton.runtime.config.load import field_type
from tests.runtime.config_files import env_name, nested, refused, write


def booleans(model: type[BaseModel] = ClusterConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all boolean settings there are."""
    for name in model.model_fields:
        kind = field_type(tuple(f"{prefix}{name}".split(".")))
        if kind is bool:
            yield f"{prefix}{name}"
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from booleans(kind, f"{prefix}{name}.")


BOOLEANS = sorted(booleans())


def value(config: ClusterConfig, key: str) -> Any:
    """As it would be read back from the running deployment."""
    found: Any = json.loads(effective_json(config))
    for part in key.split("."):
        found = found[part]
    return found


def test_there_are_booleans_in_several_sections() -> None:
    assert {"engine.prefix_caching", "decode.engine.prefix_caching", "supervise.restart"} <= set(BOOLEANS)


@pytest.mark.parametrize("key", BOOLEANS)
class TestBooleans:
    @pytest.mark.parametrize("dash", [False, True])
    @pytest.mark.parametrize("written", ["true", "false"])
    def test_in_a_file(self, tmp_path: Path, key: str, written: str, dash: bool) -> None:
        config = load_config(write(tmp_path, nested(key, written, dash)))
        assert value(config, key) is (written == "true")

    @pytest.mark.parametrize(
        "word", ["'false'", '"true"', "off", "no", "on", "yes", "True", "FALSE", "0", "1", "~"]
    )
    def test_other_spellings_in_a_file_are_refused(self, tmp_path: Path, key: str, word: str) -> None:
        path = write(tmp_path, nested(key, word))
        message = refused(path)
        depth = len(key.split("."))
        column = 2 * (depth - 1) + len(key.split(".")[-1]) + 3
        assert message.startswith(f"{path}:{depth}:{column}: {key}: must be true or false, got ")

    @pytest.mark.parametrize("file", [True, False])
    @pytest.mark.parametrize("env", [True, False])
    @pytest.mark.parametrize("flag", [True, False])
    def test_flag_wins_over_environment_over_file(
        self, tmp_path: Path, key: str, file: bool, env: bool, flag: bool
    ) -> None:
        path = write(tmp_path, nested(key, str(file).lower()))
        environ = {env_name(key): str(env).lower()}
        assert value(load_config(path), key) is file
        assert value(load_config(path, environ=environ), key) is env
        for spelling in (key, key.replace("_", "-")):
            for given in (flag, str(flag).lower()):
                assert value(load_config(path, environ=environ, flags={spelling: given}), key) is flag

    @pytest.mark.parametrize("word", ["False", "off", "0", "'false'", ""])
    def test_other_spellings_elsewhere_are_refused(self, key: str, word: str) -> None:
        assert f"environment {env_name(key)}: {key}: must be true" in refused(environ={env_name(key): word})
        assert f"flag {key}: must be true or false" in refused(flags={key: word})


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("bogus: 1\n", "1:1", "bogus: unknown key"),
        ("model: demo\nrouter:\n  prot: 80\n", "3:3", "router.prot: unknown key; did you mean port?"),
        ("router:\n  port: 80\n  port: 81\n", "3:3", "router.port: duplicate key, given before at line 2"),
        ("engine:\n  max-running: 1\n  max_running: 2\n", "3:3", "engine.max_running: duplicate key"),
        ("router: {}\nmodel: demo\nrouter: {}\n", "3:1", "router: duplicate key"),
        ("router:\n  port: '8080'\n", "2:9", 'must be a whole number, got "8080" (leave out the quotes)'),
        ("router:\n  port: 1e3\n", "2:9", "router.port: must be a whole number, got 1000.0"),
        ("router:\n  port: 08\n", "2:9", "leading zeros are refused"),
        ("router:\n  port: 0x50\n", "2:9", "router.port: must be a whole number"),
        ("router:\n  port: 8_080\n", "2:9", "router.port: must be a whole number"),
        ("router:\n  port: 70000\n", "2:9", "router.port: must be at most 65535, got 70000"),
        ("prefill:\n  tensor_parallel: 0\n", "2:20", "prefill.tensor_parallel: must be at least 1, got 0"),
        ("router:\n  port: [80]\n", "2:9", "router.port: must be a whole number, got a section or list"),
        ("model: [demo]\n", "1:8", "model: must be text"),
        ("model: {name: demo}\n", "1:8", "model: must be text"),
        ("model: 08\nserved_name: 8\n", "2:14", "served_name: must be text, got 8 (put it in quotes)"),
        ("served_name: true\n", "1:14", "served_name: must be text, got true (put it in quotes)"),
        ("router: 8080\n", "1:9", "router: must be a section"),
        ("transfer:\n  kinds: shm\n", "2:10", 'transfer.kinds: must be a list, got "shm"'),
        ("transfer:\n  kinds: [shm, rdma]\n", "2:16", "transfer.kinds[1]: must be 'shm' or 'tcp', got"),
        ("transfer:\n  lease_s: .inf\n", "2:12", "transfer.lease_s: must be a number"),
        ("transfer:\n  lease_s: 0\n", "2:12", "transfer.lease_s: must be greater than 0"),
        ("engine:\n  kv_memory: 2 gb\n", "2:14", "engine.kv_memory: '2 gb' is not a size"),
        ("engine:\n  num_blocks: 9\n  kv_memory: 1GiB\n", "2:15", "engine: num_blocks and kv_memory are"),
        ("router:\n\tport: 80\n", "2:1", "has a tab; YAML is indented with spaces"),
        ("router:\n  port: 80\n port: 81\n", "3:2", "is not YAML"),
        ("- model\n", "1:1", "must hold `key: value` pairs"),
        ("demo\n", "1:1", "must hold `key: value` pairs"),
        ("model: demo\n---\nmodel: demo\n", "2:1", "is not YAML"),
        ("model: !!python/object/apply:os.system [ls]\n", "1:8", "tags are not supported"),
        ("<<: {model: demo}\n", "1:1", "merge keys"),
        ("a: &a\n  b: *a\n", "1:4", "a.b: too many values, or an alias inside itself"),
        ("? [a]\n: 1\n", "1:3", "a key must be a word"),
        ("router: {processes: 0}\n", "1:21: ", "router.processes is 0: `registries` must name a router"),
        ("router: {processes: 0}\nprefill: {count: 0}\n", "1:21: ", "there is nothing to start"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_place_and_key(tmp_path: Path, text: str, place: str, message: str) -> None:
    path = write(tmp_path, text)
    lines = refused(path).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{path}:{place}")
    assert message in lines[0]


def test_all_mistakes_are_listed_at_once_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "router: {port: x}\nengine: {dtype: int4}\nbogus: 1\n")
    assert [line.split(":")[1] for line in refused(path).splitlines()] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing\n", "---\n", "null\n", "{}\n", "router:\nengine:\n  # nothing\n"]
)
def test_nothing_written_is_all_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(write(tmp_path, text)) == load_config()


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"\xef\xbb\xbfrouter:\r\n  port: 8080\r\n")
    assert load_config(path).router.port == 8080


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"model: \xe9\n", b"model: a\x00b\n"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    assert refused(path).startswith(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing.yaml")
    assert "cannot be read" in refused(tmp_path)


def test_aliases_cannot_blow_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "too many values" in refused(write(tmp_path, "\n".join(lines) + "\n"))


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("no", "no"), ("08", "08"), ("'true'", "true"), ("'1e3'", "1e3"), ("1:30", "1:30"), ("m@x=y", "m@x=y")],
)
def test_words_for_text_stay_text(tmp_path: Path, word: str, wanted: str) -> None:
    assert load_config(write(tmp_path, f"served_name: {word}\n")).served_name == wanted
    assert load_config(environ={"BATON_SERVED_NAME": wanted}).served_name == wanted
    assert load_config(flags={"served_name": wanted}).served_name == wanted


@pytest.mark.parametrize(("word", "wanted"), [("3", 3.0), ("2.5", 2.5), ("1e1", 10.0), ("5e-1", 0.5)])
def test_numbers(tmp_path: Path, word: str, wanted: float) -> None:
    assert load_config(write(tmp_path, nested("transfer.lease_s", word))).transfer.lease_s == wanted
    assert load_config(environ={"BATON_TRANSFER__LEASE_S": word}).transfer.lease_s == wanted


@pytest.mark.parametrize(
    ("written", "wanted"), [("512MiB", 2**29), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("4096", 4096)]
)
def test_sizes(tmp_path: Path, written: str, wanted: int) -> None:
    assert load_config(write(tmp_path, nested("engine.kv_memory", written))).engine.pool_bytes == wanted
    assert load_config(flags={"engine.kv-memory": written}).engine.pool_bytes == wanted


@pytest.mark.parametrize("written", ["tcp", "tcp,shm", "[tcp, shm]", " tcp , shm "])
def test_lists_on_one_line(written: str) -> None:
    wanted = ("tcp",) if written == "tcp" else ("tcp", "shm")
    assert load_config(environ={"BATON_TRANSFER__KINDS": written}).transfer.kinds == wanted
    assert load_config(flags={"transfer.kinds": written}).transfer.kinds == wanted


def test_a_list_replaces_a_list_and_devices_may_have_colons(tmp_path: Path) -> None:
    path = write(tmp_path, "engine: {dtype: float32}\nprefill: {devices: ['cuda:0', 'cuda:1', cpu]}\n")
    assert load_config(path).prefill.devices == ("cuda:0", "cuda:1", "cpu")
    assert load_config(path, flags={"prefill.devices": "cuda:2"}).prefill.devices == ("cuda:2",)


def test_unknown_variables_and_flags_are_refused() -> None:
    assert "did you mean BATON_MODEL?" in refused(environ={"BATON_MODLE": "x"})
    assert "router.prot: unknown key; did you mean port?" in refused(environ={"BATON_ROUTER__PROT": "1"})
    assert "flag no.such: no: unknown key" in refused(flags={"no.such": "1"})
    assert "flag model.x" in refused(flags={"model": "demo", "model.x": "1"})
    assert "given twice" in refused(flags=[("router.max-retries", "1"), ("router.max_retries", "2")])


def test_variables_that_are_not_ours_are_left_alone() -> None:
    theirs = {
        "BATON_SERVICE_HOST": "10.0.0.1",
        "BATON_PORT": "tcp://10.0.0.1:80",
        "BATON_PORT_80_TCP_ADDR": "10.0.0.1",
        "BATON_ROUTER_SERVICE_PORT_GRPC": "80",
        "BATON_ENDPOINT": "h:1",
        "BATON_CPU_ISA": "avx2",
        "HOME": "/",
    }
    assert load_config(environ=theirs) == load_config()


def test_a_role_overrides_single_keys_of_the_engine(tmp_path: Path) -> None:
    text = "engine: {block_size: 4, kv_memory: 1GiB}\ndecode:\n  engine: {num_blocks: 99, max_running: 8}\n"
    config = load_config(write(tmp_path, text), flags={"prefill.engine.block_size": 16})
    decode, prefill = config.nodes(Role.DECODE).engine, config.nodes(Role.PREFILL).engine
    assert (decode.block_size, decode.num_blocks, decode.pool_bytes, decode.max_running) == (4, 99, None, 8)
    assert (prefill.block_size, prefill.pool_bytes, prefill.max_running) == (16, 2**30, 64)


def test_counts_default_to_one_of_each_unless_one_is_given() -> None:
    def sizes(**counts: int) -> tuple[int, int, int]:
        config = load_config(flags={f"{role}.count": count for role, count in counts.items()})
        return config.prefill.size, config.decode.size, config.both.size

    assert sizes() == (1, 1, 0)
    assert sizes(both=2) == (0, 0, 2)
    assert sizes(prefill=2, decode=3) == (2, 3, 0)
    assert sizes(prefill=0, decode=0) == (0, 0, 0)


def test_the_effective_form_reads_back_equal(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, "engine: {kv_memory: 1GiB}\nboth: {count: 2, engine: {num_blocks: 5}}\n")
    )
    assert from_json(effective_json(config)) == config
    assert load_config(write(tmp_path, effective_json(config))) == config  # JSON is YAML


def test_quantisations_and_backends_are_the_engines() -> None:
    properties = json_schema()["$defs"]["EngineConfig"]["properties"]
    assert tuple(properties["quantization"]["enum"]) == QUANTIZATIONS
    assert tuple(properties["backend"]["enum"]) == BACKENDS


@pytest.mark.parametrize(
    ("threads", "counts", "want"),
    [
        (1, (1, 1, 0), {"prefill": [(0,)], "decode": [(1,)]}),
        (2, (1, 1, 0), {"prefill": [(0, 1)], "decode": [(2, 3)]}),
        (1, (1, 2, 1), {"prefill": [(0,)], "decode": [(1,), (2,)], "both": [(3,)]}),
        (2, (1, 2, 0), {"prefill": [(0, 1)], "decode": [(), ()]}),
        (1, (2, 2, 1), {"prefill": [(0,), (1,)], "decode": [(), ()], "both": [(2,)]}),
        (1, (4, 1, 0), {"prefill": [(0,), (1,), (2,), (3,)], "decode": [()]}),
        (2, (3, 1, 0), {"prefill": [(), (), ()], "decode": [()]}),
    ],
)
def test_each_node_has_cores_of_its_own_while_there_are_enough(
    threads: int,
    counts: tuple[int, ...],
    want: dict[str, list[tuple[int, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "usable_cpus", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 2, 1, 0})
    names = ("prefill", "decode", "both")
    flags = {f"{name}.count": count for name, count in zip(names, counts, strict=True)}
    config = load_config(flags=flags | {"engine.threads": threads})
    for name, cpus in want.items():
        assert [launcher.cpus_of(config, Role(name), i) for i in range(len(cpus))] == cpus
    apart = load_config(flags={"engine.pin": False})
    assert launcher.cpus_of(apart, Role.PREFILL, 0) == ()


def test_every_mistake_is_told_wherever_it_was_made(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "decode:\n  count: 1\nrouter:\n  prot: 1\n  port: '80'\nengine: {max_runing: 3}\ndecode: {}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(
            file,
            environ={"BATON_ENGINE__BLOCK_SIZE": "many"},
            flags=[("transfer.lease_s", "0"), ("prefill.count", "[1, 2")],
        )
    said = str(caught.value).splitlines()
    assert [line.removeprefix(str(file))[:4] for line in said[:4]] == [":4:3", ":5:9", ":6:1", ":7:1"]
    for part in (
        "prot",
        "leave out the quotes",
        "max_runing",
        "decode: duplicate key, given before at line 1",
    ):
        assert any(part in line for line in said[:4])
    assert {line.split(":")[0] for line in said[4:]} == {
        "environment BATON_ENGINE__BLOCK_SIZE",
        "flag transfer.lease_s",
        "flag prefill.count",
    }


def test_the_schema_lists_every_key_with_its_meaning() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(ClusterConfig.model_fields)
    assert schema["additionalProperties"] is False
    assert "kernel chooses" in schema["$defs"]["RouterConfig"]["properties"]["port"]["description"]


@pytest.mark.parametrize(
    ("model", "name"),
    [("demo", "demo"), ("/m/Smol-135M/", "Smol-135M"), ("/m/smol.Q8.gguf", "smol.Q8"), ("org/name", "name")],
)
def test_the_served_name_comes_from_the_model(model: str, name: str) -> None:
    assert load_config(flags={"model": model}).name == name
    assert load_config(flags={"model": model, "served_name": "x"}).name == "x"
