"""`baton serve`: options, file and environment end up in the settings, or the start is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli.serve import missing_role
from baton.runtime.config import ClusterConfig
from tests.cli.invoke import Cli


def test_options_become_settings(cli: Cli, served: list[ClusterConfig]) -> None:
    options = "serve /m --prefill 2 --decode 1 --port 80 --kv-memory 1GiB --set decode.engine.max_running=3"
    assert cli(*options.split()).code == 0
    config = served[0]
    assert (config.model, config.prefill.size, config.decode.size, config.both.size) == ("/m", 2, 1, 0)
    assert (config.router.port, config.engine.kv_memory) == (80, 2**30)
    assert (config.decode.engine.max_running, config.prefill.engine.max_running) == (3, 64)


def test_weights_are_quantised_for_all_roles_alike(cli: Cli, served: list[ClusterConfig]) -> None:
    args = ("--dtype", "bfloat16", "--quantization", "int8-w8a8")
    assert cli("serve", *args).code == 0
    engines = served[0].prefill.engine, served[0].decode.engine
    assert [(engine.dtype, engine.quantization) for engine in engines] == [("bfloat16", "int8-w8a8")] * 2
    refused = cli("serve", *args, "--set", "decode.engine.quantization=int4")
    assert refused.code != 0
    assert "quantization is int8-w8a8 in prefill.engine, int4 in decode.engine" in refused.err
    assert len(served) == 1


def test_the_type_of_kv_may_differ_by_role(cli: Cli, served: list[ClusterConfig]) -> None:
    assert cli("serve", "--kv-dtype", "fp8", "--set", "prefill.engine.kv_dtype=bfloat16").code == 0
    engines = served[0].prefill.engine, served[0].decode.engine
    assert [engine.kv_dtype for engine in engines] == ["bfloat16", "fp8"]


@pytest.mark.parametrize("option", ["--max-model-len", "--max_model_len", "--max-model_len"])
@pytest.mark.parametrize("joined", [True, False])
def test_underscores_and_equals_signs_make_no_difference(
    cli: Cli, served: list[ClusterConfig], option: str, joined: bool
) -> None:
    args = [f"{option}=77"] if joined else [option, "77"]
    assert cli("serve", *args).code == 0
    assert served[0].engine.max_model_len == 77


@pytest.mark.parametrize(
    "option", [("--config", "{}"), ("--config={}",), ("-f", "{}"), ("--file={}",), ("-f{}",)]
)
def test_every_way_to_name_the_file_is_read(
    cli: Cli, served: list[ClusterConfig], tmp_path: Path, option: tuple[str, ...]
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("served_name: from-file\n")
    assert cli("serve", *(part.format(path) for part in option)).code == 0
    assert served[0].served_name == "from-file"


@pytest.mark.parametrize("file", ["true", "false"])
@pytest.mark.parametrize("env", [None, "true", "false"])
@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (None, None),
        ("--prefix-caching", True),
        ("--no-prefix-caching", False),
        ("--no_prefix_caching", False),
        ("--set=engine.prefix_caching=false", False),
        ("--set=engine.prefix-caching=true", True),
    ],
)
def test_an_explicit_flag_wins_also_when_it_says_no(
    cli: Cli, served: list[ClusterConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    file: str, env: str | None, flag: str | None, said: bool | None,
) -> None:  # fmt: skip
    path = tmp_path / "cluster.yaml"
    path.write_text(f"engine: {{prefix-caching: {file}}}\n")
    if env:
        monkeypatch.setenv("BATON_ENGINE__PREFIX_CACHING", env)
    assert cli("serve", "-f", str(path), *([flag] if flag else [])).code == 0
    wanted = said if said is not None else (env or file) == "true"
    assert served[0].engine.prefix_caching is wanted
    assert served[0].decode.engine.prefix_caching is wanted


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prot", "80"], "o such option"),
        (["--port", "eighty"], "--port"),
        (["--prefill", "-1"], "--prefill"),
        (["--port", "70000"], "flag router.port: must be at most 65535, got 70000\n"),
        (["--dtype", "int4"], "flag engine.dtype: must be 'auto', 'float32', 'bfloat16' or 'float16', got "),
        (["--quantization", "int3"], "flag engine.quantization: must be 'auto', 'none', 'int8', 'int4', "),
        (["--kv-dtype", "fp16"], "flag engine.kv_dtype: must be 'auto', 'float32', 'bfloat16', 'float16', "),
        (["--kv-memory", "lots"], "flag engine.kv_memory: 'lots' is not a size: write bytes as a number"),
        (["--set", "router.port"], "write section.key=value"),
        (["--set", "router.prot=1"], "flag router.prot: unknown key; did you mean port?"),
        (["--set", "router.port=1", "--port", "2"], "is given twice"),
        (["-f", "/does/not/exist.yaml"], "/does/not/exist.yaml: cannot be read: No such file"),
        (["one", "two"], "unexpected extra argument"),
    ],
)
def test_mistakes_end_with_code_2_and_a_line_that_says_why(
    cli: Cli, served: list[ClusterConfig], args: list[str], message: str
) -> None:
    done = cli("serve", *args)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
    assert served == []


def test_a_mistake_in_the_environment_names_the_variable(
    cli: Cli, served: list[ClusterConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_ROUTER__PORT", "'8080'")
    done = cli("serve")
    assert (done.code, served) == (2, [])
    assert done.err.startswith("error: environment BATON_ROUTER__PORT: router.port: must be a whole number")


@pytest.mark.parametrize(
    ("args", "missing"),
    [
        ("", ""),
        ("--both 1", ""),
        ("--prefill 1 --decode 0", "decode"),
        ("--decode 1", "prefill"),
        ("--prefill 0", "prefill and a decode"),
        ("--prefill 1 --set router.processes=0 --set registries=h:1", ""),
    ],
)
def test_a_role_that_nobody_has_is_known_at_the_start(
    cli: Cli, served: list[ClusterConfig], args: str, missing: str
) -> None:
    assert cli("serve", *args.split()).code == 0
    assert missing_role(served[0]) == missing


@pytest.mark.parametrize(
    ("args", "on_a_terminal", "level"),
    [
        ("", True, "warning"),
        ("", False, "info"),
        ("-v", True, "info"),
        ("--log-level debug", True, "debug"),
        ("--log-level error -v", True, "error"),
        ("--set logging.level=info", True, "info"),
    ],
)
def test_a_terminal_gets_warnings_unless_more_was_asked_for(
    cli: Cli, served: list[ClusterConfig], monkeypatch: pytest.MonkeyPatch,
    args: str, on_a_terminal: bool, level: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("baton.cli.serve.sys.stderr.isatty", lambda: on_a_terminal)
    assert cli("serve", *args.split()).code == 0
    assert served[0].logging.level == level
