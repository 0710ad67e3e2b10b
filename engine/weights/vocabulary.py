"""Which vocabulary a model's files hold, as a digest that nodes and routers compute alike.

Light: no tensor library is imported, and a vocabulary of 400,000 strings takes a fraction of a second.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from baton.core.errors import InvalidArgument
from baton.engine.weights.gguf_meta import raw_metadata

# What decides how text becomes ids; the chat template is not part of it.
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
_KEYS = tuple(f"tokenizer.ggml.{key}" for key in ("model", "pre", "tokens", "token_type", "merges", "scores"))


def tokenizer_digest(path: Path) -> str:
    """Over a folder's tokenizer files, or the vocabulary and merges of a .gguf file; "none" where there are
    none. InvalidArgument: the file cannot be read."""
    items = _of_gguf(path) if path.is_file() else _of_folder(path)
    digest = hashlib.blake2b(digest_size=16)
    for name, content in items:
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest() if items else "none"


def _of_folder(folder: Path) -> list[tuple[str, bytes]]:
    try:
        return [(name, (folder / name).read_bytes()) for name in _FILES if (folder / name).is_file()]
    except OSError as error:
        raise InvalidArgument(f"cannot read the tokenizer in {folder}: {error}", field="model") from error


def _of_gguf(path: Path) -> list[tuple[str, bytes]]:
    found = raw_metadata(path, _KEYS)
    return [(key, found[key]) for key in _KEYS if key in found]
