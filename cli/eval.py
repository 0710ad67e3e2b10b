"""`baton eval`: what a way of storing weights or KV costs in quality, as perplexity on a text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from baton.cli.terminal import answers, notes
from baton.core.errors import InvalidArgument
from baton.engine.config import EngineConfig
from baton.engine.eval.perplexity import TEXT, Windows, blocks_for, perplexity
from baton.engine.loader import load
from baton.engine.weights.locate import locate
from baton.router.text.load import load_tokenizer


@dataclass(frozen=True, slots=True)
class Sample:
    """What is predicted: so many tokens of a file, from its start. text: None: the one that comes with Baton;
    tokens: None: all."""

    text: Path | None
    tokens: int | None
    windows: Windows


@dataclass(frozen=True, slots=True)
class Result:
    """change: of the perplexity against the first result's, as a part of it. nll: in nats per token."""

    dtype: str
    quantization: str
    kv_dtype: str
    backend: str
    perplexity: float
    change: float
    nll: float
    tokens: int
    weights_bytes: int
    seconds: float


def evaluate(engines: Sequence[EngineConfig], sample: Sample, *, as_json: bool) -> None:
    """Measure each, one after the other, and print how they compare with the first."""
    tokens = _tokens(sample, engines[0].model)
    results: list[Result] = []
    try:
        for result in _each(engines, tokens, sample.windows):
            first = results[0] if results else result
            results.append(replace(result, change=result.perplexity / first.perplexity - 1))
    finally:  # a combination that cannot run does not lose what took minutes before it
        if results and as_json:
            print(json.dumps([asdict(result) for result in results]))
        elif results:
            answers.print(_table(results))


def _each(
    engines: Sequence[EngineConfig], tokens: tuple[list[int], list[int]], windows: Windows
) -> Iterator[Result]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        for engine in engines:
            name = f"{engine.quantization} weights, {engine.kv_dtype} KV"
            task = progress.add_task(name, total=len(tokens[0]) - 1)
            yield _measure(engine, tokens, windows, _updating(progress, task))
            progress.remove_task(task)


def combinations(
    base: EngineConfig, dtypes: Sequence[str], quantizations: Sequence[str], kv_dtypes: Sequence[str]
) -> list[EngineConfig]:
    """Each of the first with each of the others; a word may be several with commas between."""
    split = [
        [part.strip() for word in words for part in word.split(",")]
        for words in (dtypes, quantizations, kv_dtypes)
    ]
    return [
        replace(base, dtype=dtype, quantization=quantization, kv_dtype=kv_dtype)
        for dtype, quantization, kv_dtype in product(*split)
    ]


def _updating(progress: Progress, task: TaskID) -> Callable[[int], None]:
    return lambda done: progress.update(task, completed=done)


def _tokens(sample: Sample, model: str) -> tuple[list[int], list[int]]:
    """Of the text, and what the model's tokenizer puts before any."""
    path = sample.text or TEXT
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}", field="text") from error
    codec = load_tokenizer(str(locate(model)))
    prefix = codec.encode("")
    return codec.encode(text)[len(prefix) :][: sample.tokens], prefix


def _measure(
    engine: EngineConfig, tokens: tuple[list[int], list[int]], windows: Windows, show: Callable[[int], None]
) -> Result:
    token_ids, prefix = tokens
    longest = windows.window + len(prefix)
    loaded = load(replace(engine, max_model_len=longest))
    if loaded.max_positions < longest:
        raise InvalidArgument(f"the model sees {loaded.max_positions} tokens at most", field="window")
    runner = loaded.runner(blocks_for(windows, engine.block_size, len(prefix)))
    begun = time.perf_counter()
    found = perplexity(runner, token_ids, windows, block_size=engine.block_size, prefix=prefix, progress=show)
    seconds = time.perf_counter() - begun
    runner.close()
    return Result(
        dtype=str(engine.torch_dtype).removeprefix("torch."),
        quantization=engine.quantization,
        kv_dtype=engine.kv_dtype,
        backend=loaded.backend,
        perplexity=found.value,
        change=0.0,
        nll=found.nll,
        tokens=found.tokens,
        weights_bytes=loaded.weights_bytes,
        seconds=seconds,
    )


def _table(results: Sequence[Result]) -> Table:
    table = Table(
        "dtype", "weights", "KV", "MB of weights", "perplexity", "change", "tokens", "tokens/s", box=None
    )
    for result in results:
        table.add_row(
            result.dtype,
            result.quantization,
            result.kv_dtype,
            f"{result.weights_bytes / 1e6:,.0f}",
            f"{result.perplexity:.4f}",
            "" if result is results[0] else f"{100 * result.change:+.2f} %",
            f"{result.tokens:,}",
            f"{result.tokens / result.seconds:,.0f}",
        )
    return table
