"""Load a tokenizer from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from baton.core.errors import InvalidArgument
from baton.router.text.codec import TextCodec
from baton.router.text.gguf_tokenizer import load_gguf
from baton.router.text.source import TokenizerSource, through_transformers

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_tokenizer(path: str) -> TextCodec:
    """path: a folder with tokenizer.json (or files transformers can convert), or a .gguf file.

    Raises InvalidArgument (field `model`) naming the file that is missing or broken.
    """
    place = Path(path)
    if place.is_dir():
        return TextCodec(_from_folder(place))
    if not place.is_file():
        raise InvalidArgument(f"{path} is neither a folder nor a file", field="model")
    return TextCodec(load_gguf(place))


def _from_folder(folder: Path) -> TokenizerSource:
    config = _json(folder / "tokenizer_config.json")
    tokenizer = _tokenizer(folder)
    named = _named_tokens(config, _json(folder / "special_tokens_map.json"))
    bos = named.get("bos_token")
    return TokenizerSource(
        tokenizer=tokenizer,
        bos_token_id=None if bos is None else tokenizer.token_to_id(bos),
        eos_token_ids=_eos_ids(folder, tokenizer, named.get("eos_token")),
        add_bos=config.get("add_bos_token"),
        chat_template=_chat_template(folder, config),
        named_tokens=named,
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(f"{path} is not valid JSON: {error}", field="model") from error
    if not isinstance(content, dict):
        raise InvalidArgument(f"{path} does not hold a JSON object", field="model")
    return content


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return through_transformers(folder)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise InvalidArgument(f"{path} is not a tokenizer: {error}", field="model") from error


def _named_tokens(config: dict[str, Any], special_map: dict[str, Any]) -> dict[str, str]:
    named = {}
    for name in _NAMES:
        value = config.get(name, special_map.get(name))
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _eos_ids(folder: Path, tokenizer: Tokenizer, eos: str | None) -> tuple[int, ...]:
    """All ids that end a text: those the generation config lists (else the model config), and the
    tokenizer's."""
    listed = _json(folder / "generation_config.json").get("eos_token_id")
    if listed is None:
        listed = _json(folder / "config.json").get("eos_token_id")
    ids = [listed] if isinstance(listed, int) else list(listed or ())
    own = None if eos is None else tokenizer.token_to_id(eos)
    if own is not None:
        ids.append(own)
    return tuple(dict.fromkeys(ids))


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        by_name = {item["name"]: item["template"] for item in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None
