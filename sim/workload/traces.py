"""Readers of published request traces. Each row becomes an Arrival; a bad one is named by file and line.

Mooncake (FAST'25): JSON lines with timestamp in ms, lengths in tokens, one id per 512-token prefix block.
Azure 2023 (Splitwise, arXiv:2311.18677): CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
ShareGPT: a JSON list of conversations, without times and without token counts.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from baton.core.errors import InvalidArgument
from baton.sim.workload.arrival import Arrival
from baton.sim.workload.sharegpt import conversation_arrivals, json_items

MOONCAKE_BLOCK_TOKENS = 512
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BYTES_PER_TOKEN = 4.0  # English text under the common byte-level BPE vocabularies


class TraceError(InvalidArgument):
    """A trace that cannot be read; the message begins with the file, and the line if it is one's fault."""


def read_mooncake(path: str | Path) -> list[Arrival]:
    """Arrivals in order of time, the first at 0."""
    path = Path(path)
    found = []
    for line_number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            _fail(path, line_number, f"not JSON: {error.msg}")
        if not isinstance(row, dict):
            _fail(path, line_number, "not an object")
        ids = row.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(block) is int and block >= 0 for block in ids):
            _fail(path, line_number, "hash_ids is no list of whole numbers")
        found.append(
            _arrival(
                path,
                line_number,
                at_s=_number(path, line_number, row, "timestamp") / 1e3,
                prompt_tokens=_whole(path, line_number, row, "input_length"),
                output_tokens=_whole(path, line_number, row, "output_length"),
                prefix=tuple(ids),
                prefix_block=MOONCAKE_BLOCK_TOKENS,
            )
        )
    return _in_order(path, found)


def read_azure(path: str | Path) -> list[Arrival]:
    """Arrivals in order of time, the first at 0."""
    path = Path(path)
    rows = csv.DictReader(line for _, line in _lines(path))
    missing = [name for name in AZURE_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        _fail(path, 1, f"no column {missing[0]}")
    found = []
    for row in rows:
        line_number = rows.line_num
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"] or "")
        except ValueError:
            _fail(path, line_number, f"TIMESTAMP {row['TIMESTAMP']!r} is no time")
        found.append((at, line_number, row))
    start = min((at for at, _, _ in found), default=None)
    arrivals = [
        _arrival(
            path,
            line_number,
            at_s=(at - start).total_seconds() if start is not None else 0.0,
            prompt_tokens=_whole(path, line_number, row, "ContextTokens"),
            output_tokens=_whole(path, line_number, row, "GeneratedTokens"),
        )
        for at, line_number, row in found
    ]
    return _in_order(path, arrivals)


def read_sharegpt(path: str | Path, count: Callable[[str], int] | None = None) -> list[Arrival]:
    """One arrival per answer, its prompt being all that was said before; all at 0, as the file has no times
    (`arrivals.timed` gives some). count: tokens of a text; None: a token per BYTES_PER_TOKEN bytes."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _unread(path, error)
    found: list[Arrival] = []
    try:
        for number, (line_number, item) in enumerate(json_items(text)):
            try:
                found += conversation_arrivals(item, number, count or _guess_tokens)
            except InvalidArgument as error:
                _fail(path, line_number, str(error))
    except json.JSONDecodeError as error:
        _fail(path, error.lineno, f"not JSON: {error.msg}")
    return _in_order(path, found)


READERS: dict[str, Callable[[str | Path], list[Arrival]]] = {
    "mooncake": read_mooncake,
    "azure": read_azure,
    "sharegpt": read_sharegpt,
}
SUFFIXES = {".jsonl": "mooncake", ".csv": "azure", ".json": "sharegpt"}


def read_trace(path: str | Path, form: str = "") -> list[Arrival]:
    """form: a key of READERS; "": by the file's suffix."""
    form = form or SUFFIXES.get(Path(path).suffix, "")
    if form not in READERS:
        raise TraceError(f"{path}: unknown form of trace; known are {', '.join(READERS)}")
    return READERS[form](path)


def _guess_tokens(text: str) -> int:
    return max(1, round(len(text.encode()) / BYTES_PER_TOKEN))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from enumerate(file, 1)
    except (OSError, UnicodeDecodeError) as error:
        _unread(path, error)


def _number(path: Path, line_number: int, row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        _fail(path, line_number, f"{name} is {value!r}, not a time in ms")
    return float(value)


def _whole(path: Path, line_number: int, row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    try:
        number = int(value) if isinstance(value, (int, str)) else -1
    except ValueError:
        number = -1
    if number < 0:
        _fail(path, line_number, f"{name} is {value!r}, not a number of tokens")
    return max(1, number)  # traces hold some empty prompts and answers; each is at least a token here


def _arrival(path: Path, line_number: int, **fields: Any) -> Arrival:
    try:
        return Arrival(**fields)
    except InvalidArgument as error:
        _fail(path, line_number, str(error))


def _in_order(path: Path, arrivals: list[Arrival]) -> list[Arrival]:
    if not arrivals:
        _fail(path, 1, "holds no requests")
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def _unread(path: Path, error: OSError | UnicodeDecodeError) -> NoReturn:
    why = error.strerror if isinstance(error, OSError) and error.strerror else "is no UTF-8 text"
    raise TraceError(f"{path}: {why[0].lower()}{why[1:]}") from None


def _fail(path: Path, line_number: int, why: str) -> NoReturn:
    raise TraceError(f"{path}:{line_number}: {why}")
