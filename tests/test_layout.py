"""The shape of the repository, as checks: who imports whom, sizes, generated files, names at the root."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PACKAGES = sorted(
    path.name for path in (ROOT / "src" / "baton").iterdir() if path.is_dir() and path.name[0] != "_"
)
MAX_LINES = 400
MAX_FUNCTION_LINES = 50
TOO_LONG_FILES: set[str] = set()  # stays empty: split the file by noun instead
TOO_LONG_FUNCTIONS: set[str] = set()  # "path:name", each with a reason beside it

# Where purity is promised by name. Each must be under the "pure" contract of pyproject.toml.
PURE = (
    "core/**/*.py",
    "*/scheduler*.py",
    "kv_transfer/handoff*.py",
    "kv_transfer/layout*.py",
    "router/machine*.py",
    "router/policy*.py",
    "router/policy/**/*.py",
)
NO_CLOCK_NO_DICE_NO_WIRE = {
    "asyncio",
    "grpc",
    "random",
    "secrets",
    "socket",
    "threading",
    "time",
    "torch",
    "zmq",
}


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=100
    )


@cache
def sources() -> tuple[Path, ...]:
    """All hand-written Python files, relative to the root."""
    found = [path for package in (*PACKAGES, "tests") for path in (ROOT / package).rglob("*.py")]
    found += (ROOT / "src" / "baton").glob("*.py")
    return tuple(sorted(path.relative_to(ROOT) for path in found if "_pb2" not in path.name))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, wherever in the file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def module_name(path: Path) -> str:
    return ".".join(("baton", *path.with_suffix("").parts)).removesuffix(".__init__")


@cache
def settings() -> dict[str, dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def contract(identity: str) -> dict:
    return next(c for c in settings()["importlinter"]["contracts"] if c["id"] == identity)


# ---- imports ---------------------------------------------------------------------------------------------


def test_import_rules() -> None:
    done = run(BIN / "lint-imports", "--no-logo", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_has_its_layer() -> None:
    listed = re.findall(r"\w+", " ".join(contract("layers")["layers"]))
    assert set(PACKAGES) <= set(listed)


def test_core_imports_the_standard_library_only() -> None:
    for path in (p for p in sources() if p.parts[0] == "core"):
        for name in imports(path):
            top = name.split(".")[0]
            known = top in sys.stdlib_module_names and top not in NO_CLOCK_NO_DICE_NO_WIRE
            assert known or name.startswith("baton.core"), f"{path} imports {name}"


def test_what_is_pure_by_name_is_under_the_contract() -> None:
    patterns = [
        re.compile(expression.replace(".", r"\.").replace("*", r"\w+") + r"(\.|$)")
        for expression in contract("pure")["source_modules"]
    ]
    files = {path for pattern in PURE for path in ROOT.glob(pattern)}
    names = sorted(module_name(path.relative_to(ROOT)) for path in files if path.parts[-2] != "tests")
    assert "baton.core.request" in names
    missed = [name for name in names if not any(pattern.match(name) for pattern in patterns)]
    assert not missed, "add these to source_modules of the contract"
    assert set(contract("pure")["forbidden_modules"]) >= NO_CLOCK_NO_DICE_NO_WIRE


def test_what_is_typed_without_excuse_is_under_the_contract_and_there() -> None:
    """A module that leaves either list unnoticed would leave a gap in the other's promise."""
    strict = next(o for o in settings()["mypy"]["overrides"] if o.get("warn_return_any") is True)["module"]
    for name in strict:
        assert (ROOT / (name.removeprefix("baton.").replace(".", "/") + ".py")).is_file(), name
    patterns = [name.replace(".", r"\.").replace("*", r"\w+") for name in contract("pure")["source_modules"]]
    missed = [name for name in strict if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    assert not missed, "add these to source_modules of the contract"


def test_role_packages_load_nothing_by_themselves() -> None:
    """An import of a pure module runs its package's __init__, which therefore stays empty."""
    for package in PACKAGES:
        assert (ROOT / package / "__init__.py").read_text().strip() == "", package


@pytest.mark.parametrize("name", ["kernels", "proto", "core", "runtime", "router"])
def test_folders_at_the_root_shadow_nothing(name: str) -> None:
    """With PYTHONSAFEPATH, and so under every command of the Makefile, `import kernels` is not ours."""
    code = f"from importlib.util import find_spec; print(find_spec({name!r}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert str(ROOT) not in done.stdout.replace(str(BIN.parent), ""), done.stdout


def test_the_tests_run_without_the_root_on_the_path() -> None:
    """Run them by `make test` or .venv/bin/pytest; `python -m pytest` needs PYTHONSAFEPATH=1."""
    assert not {"", ".", str(ROOT)} & set(sys.path)


def test_commands_are_told_not_to_put_the_root_on_the_path() -> None:
    assert re.search(r"^export PYTHONSAFEPATH := 1$", (ROOT / "Makefile").read_text(), re.MULTILINE)


# ---- files -----------------------------------------------------------------------------------------------


def test_every_folder_of_code_is_linked_into_the_package() -> None:
    for link in (ROOT / "src" / "baton").iterdir():
        if link.is_symlink():
            assert link.readlink() == Path("..", "..", link.name), "links are relative, and keep their name"
            assert link.resolve() == ROOT / link.name
            assert (link / "__init__.py").is_file()
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert folders == set(PACKAGES)


def test_files_are_short() -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in sources()}
    too_long = {path for path, lines in lengths.items() if lines > MAX_LINES}
    assert too_long == TOO_LONG_FILES, f"more than {MAX_LINES} lines: split by noun"


def test_functions_are_short() -> None:
    too_long = {
        f"{path}:{node.name}"
        for path in sources()
        if path.parts[0] != "tests"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
        and not any("triton" in ast.dump(decorator) for decorator in node.decorator_list)
    }
    assert too_long == TOO_LONG_FUNCTIONS


def test_only_what_a_person_reads_is_printed() -> None:
    for path in (p for p in sources() if p.parts[0] not in {"cli", "bench", "tests"}):
        for node in ast.walk(tree(path)):
            printed = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            )
            assert not printed, f"{path}:{node.lineno} prints: use the log"


def test_nothing_is_unpickled() -> None:
    dangerous = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    for path in (p for p in sources() if p.parts[0] != "tests"):
        assert not dangerous & {name.split(".")[0] for name in imports(path)}, path


# ---- protocol --------------------------------------------------------------------------------------------


def test_stubs_are_what_the_protos_say(tmp_path: Path) -> None:
    environment = {"PATH": f"{BIN}:/usr/bin:/bin"}
    subprocess.run(
        [ROOT / "proto" / "generate.sh", tmp_path],
        env=environment,
        capture_output=True,
        check=True,
        timeout=100,
    )
    made = {path.name: path.read_text() for path in (tmp_path / "baton" / "proto" / "v1").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "proto" / "v1").glob("*_pb2*")}
    assert set(made) == set(kept), "run `make proto`"
    differing = [name for name in made if made[name] != kept[name]]
    assert not differing, "run `make proto`"


@pytest.mark.parametrize("path", sorted((ROOT / "proto" / "v1").glob("*.proto")), ids=lambda path: path.name)
def test_protos_import_by_the_name_python_uses(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^package baton\.v1;$", text, re.MULTILINE)
    for name in re.findall(r'^import (?:public |weak )?"([^"]+)";$', text, re.MULTILINE):
        assert name.startswith("google/") or (ROOT / "src" / name).is_file(), name


# ---- documents -------------------------------------------------------------------------------------------


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_targets_and_files_that_exist(path: Path) -> None:
    text = path.read_text()
    named = re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE)
    assert set(named) <= make_targets()
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#]+)", text):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_pinned_versions_satisfy_what_the_package_asks_for() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line[:1] not in ("", "#")
    )
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"] + project["optional-dependencies"]["dev"]:
        requirement = Requirement(line)
        if requirement.name != "triton":  # see constraints.txt
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line
