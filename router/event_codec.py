"""Events as JSON values and back: `{"type": "TokensMade", ...fields}`. Pure; nothing is ever unpickled.

The encoding follows the dataclasses' own annotations. bytes are hex, enums their values, tuples lists, an
error its code and texts; fields equal to their default are left out, so old logs stay readable when a field
with a default is added.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from baton.core.errors import BatonError, Code, error_for
from baton.router.events import Event

Json = Any
Coder = Callable[[Any], Any]
EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}


class BadEvent(ValueError):
    """The text is not an event of this version."""


def encode_event(event: Event) -> dict[str, Json]:
    return {"type": type(event).__name__, **encode(event)}


def decode_event(value: Json) -> Event:
    """BadEvent: unknown type or field, a field missing or of another kind."""
    if not isinstance(value, dict) or value.get("type") not in EVENTS:
        raise BadEvent(f"not an event: {str(value)[:100]}")
    rest = {name: item for name, item in value.items() if name != "type"}
    event: Event = decode(EVENTS[value["type"]], rest)
    return event


def encode(value: Any) -> dict[str, Json]:
    """A dataclass instance (an effect, say) as a JSON object."""
    encoded: dict[str, Json] = _encoder(value.__class__)(value)
    return encoded


def decode(kind: Any, value: Json) -> Any:
    """The instance of dataclass `kind` that `value` encodes; BadEvent as above."""
    try:
        return _decoder(kind)(value)
    except (TypeError, ValueError, KeyError) as error:
        raise BadEvent(f"{getattr(kind, '__name__', kind)}: {error}") from error


@cache
def _encoder(hint: Hashable) -> Coder:
    return _coder(hint, _encoder, _ENCODERS, _encode_class)


@cache
def _decoder(hint: Hashable) -> Coder:
    return _coder(hint, _decoder, _DECODERS, _decode_class)


def _coder(hint: Any, inner: Callable[[Any], Coder], plain: dict[Any, Coder], of_class: Any) -> Coder:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        [some] = [arg for arg in args if arg is not type(None)]
        coder = inner(some)
        return lambda value: None if value is None else coder(value)
    if origin is tuple:
        sequence: Callable[[Any], Any] = list if plain is _ENCODERS else tuple
        if len(args) == 2 and args[1] is Ellipsis:
            each = inner(args[0])
            if each is _same:  # token ids: the bulk of a log
                return sequence
            return lambda value: sequence(each(item) for item in value)
        coders = [inner(arg) for arg in args]
        return lambda value: sequence(c(item) for c, item in zip(coders, value, strict=True))
    if origin is dict:
        return dict
    if hint in plain:
        return plain[hint]
    coder_of_class: Coder = of_class(hint)
    return coder_of_class


def _same(value: Any) -> Any:
    return value


def _encode_error(error: BatonError) -> Json:
    return [error.code.value, error.message, error.field, error.retry_after_s]


def _decode_error(value: Json) -> BatonError:
    code, message, field, retry_after_s = value
    return error_for(Code(code), message, field=field, retry_after_s=retry_after_s)


_PLAIN: dict[Any, Coder] = dict.fromkeys((int, float, str, bool), _same)
_ENCODERS: dict[Any, Coder] = {**_PLAIN, bytes: bytes.hex, BatonError: _encode_error}
_DECODERS: dict[Any, Coder] = {**_PLAIN, bytes: bytes.fromhex, BatonError: _decode_error}


def _encode_class(kind: type) -> Coder:
    if issubclass(kind, Enum):
        return lambda value: value.value
    if not is_dataclass(kind):
        raise TypeError(f"no encoding for {kind}")
    hints = get_type_hints(kind)
    parts = [(f.name, _encoder(hints[f.name]), f.default) for f in fields(kind)]

    def encode_instance(value: Any) -> Json:
        out = {}
        for name, coder, default in parts:
            item = getattr(value, name)
            if default is MISSING or item != default:
                out[name] = coder(item)
        return out

    return encode_instance


def _decode_class(kind: type) -> Coder:
    if issubclass(kind, Enum):
        return kind
    if not is_dataclass(kind):
        raise TypeError(f"no encoding for {kind}")
    hints = get_type_hints(kind)
    decoders = {f.name: _decoder(hints[f.name]) for f in fields(kind)}

    def decode_instance(value: Json) -> Any:
        unknown = value.keys() - decoders.keys()
        if unknown:
            raise ValueError(f"unknown fields {sorted(unknown)}")
        return kind(**{name: decoders[name](item) for name, item in value.items()})

    return decode_instance
