"""Where a request's time went, as bars in the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from baton.proto.v1.inference_pb2 import Timings, Usage

WIDTH = 36
COLOURS = {"queue": "yellow", "prefill": "cyan", "transfer": "magenta", "decode": "green"}


def bar(start_s: float, length_s: float, total_s: float, width: int = WIDTH) -> tuple[int, int]:
    """Cells before and of a bar: at least one cell for what took any time, never beyond `width`."""
    if total_s <= 0:
        return 0, 0
    first = min(width - 1, round(start_s / total_s * width))
    cells = round(length_s / total_s * width)
    return first, min(width - first, max(cells, 1)) if length_s > 0 else 0


def waterfall(timings: Timings, usage: Usage) -> Group:
    """Bars for queue, prefill, transfer and decode over the request's whole time, and the rates below."""
    table = Table(box=None, pad_edge=False, show_header=False)
    start_s = 0.0
    for name, colour in COLOURS.items():
        length_s = getattr(timings, f"{name}_s")
        before, cells = bar(start_s, length_s, timings.total_s)
        drawn = Text(" " * before + "█" * cells + " " * (WIDTH - before - cells), style=colour)
        table.add_row(
            Text(name, style="bold"),
            drawn,
            Text(milliseconds(length_s), justify="right"),
            _who(name, timings),
        )
        start_s += length_s
    table.add_row(Text("total", style="bold"), "", Text(milliseconds(timings.total_s), justify="right"), "")
    return Group(table, Text(rates(timings, usage)))


def rates(timings: Timings, usage: Usage) -> str:
    """Counts and speeds in one line; what was not measured is left out."""
    parts = [
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), {usage.completion_tokens} made"
    ]
    if timings.HasField("ttft_s"):
        parts.append(f"first token after {milliseconds(timings.ttft_s)}")
    if timings.HasField("tpot_s") and timings.tpot_s > 0:
        parts.append(f"{1 / timings.tpot_s:.1f} tokens/s")
    if timings.retries:
        parts.append(f"{timings.retries} {'retry' if timings.retries == 1 else 'retries'}")
    return "; ".join(parts)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _who(leg: str, timings: Timings) -> str:
    match leg:
        case "prefill":
            return timings.prefill_node
        case "transfer" if timings.transfer_bytes:
            return f"{timings.transfer_bytes / 2**20:.1f} MiB of KV"
        case "decode":
            return timings.decode_node
    return ""
