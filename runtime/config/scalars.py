"""What an unquoted word in a configuration means.

YAML 1.1 and 1.2 disagree about `no`, `off`, `08`, `0x10`, `1_000` and `1:30`, and people get bitten by it.
Here the rule is short: `true` and `false` are the only booleans; whole numbers are decimal without leading
zeros or underscores; numbers with a point or an exponent are floats (`1e3` is 1000.0); `null`, `~` and
nothing are null; everything else is text, as is everything in quotes. A value of another type than its
key's is refused.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "~": None, "": None}


def plain_value(word: str) -> Scalar:
    """The value of an unquoted word."""
    if word in _WORDS:
        return _WORDS[word]
    if _INT.fullmatch(word):
        return int(word) if len(word) <= 20 else word
    if _FLOAT.fullmatch(word):
        value = float(word)
        return value if abs(value) != float("inf") else word
    return word


def hint(written: object) -> str:
    """Advice for a value that was refused where a number or boolean was wanted; "" if there is none."""
    if not isinstance(written, str):
        return ""
    if written.lower() in {"yes", "no", "on", "off", "y", "n", "true", "false"}:
        return "write true or false, lower case and without quotes"
    if re.fullmatch(r"-?0[0-9]+", written):
        return "leading zeros are refused, because YAML's versions disagree about their meaning"
    if isinstance(plain_value(written), int | float):
        return "leave out the quotes"
    return ""
