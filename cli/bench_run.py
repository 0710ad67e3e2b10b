"""What `baton bench` does with its options."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from pydantic import ValidationError

from baton.bench.load import report
from baton.bench.load.compare import comparison
from baton.bench.load.generator import Limits
from baton.bench.load.measure import Question, measure
from baton.bench.load.one_run import Settings
from baton.bench.load.results import Results, pooled, read, schema, to_json, write
from baton.bench.load.tables import complaints, tables
from baton.bench.load.target import Options
from baton.bench.load.targets import parse_targets
from baton.bench.load.twin import twins
from baton.bench.load.words import Tokenizer
from baton.bench.load.workload import Workload
from baton.bench.profile.write import client_s
from baton.cli.bench_progress import Progressing
from baton.cli.deployments import find_endpoint
from baton.cli.router import machine_config
from baton.cli.terminal import EXIT_FAILURE, answers, notes
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.engine.weights.locate import locate
from baton.router.machine_config import RouterConfig
from baton.router.text import load_tokenizer
from baton.runtime.config import RouterConfig as RouterSection
from baton.sim.profiles import profile

EXIT_INVALID = 3
EXIT_MISSED = 4
DEFAULT_PROMPT, DEFAULT_OUTPUT = "256", "64"


@dataclass(frozen=True)
class Asked:
    """The options of `baton bench`, as they are in `cli.bench`."""

    target: list[str] | None
    rate: float | None
    rates: str | None
    find_rate: bool
    precision: float
    duration: float
    warmup: float
    tail: float
    rounds: int
    prompt_tokens: str | None
    output_tokens: str | None
    cv: float
    trace: Path | None
    prefixes: str | None
    ttft: float | None
    tpot: float | None
    attainment: float
    seed: int
    salt: int | None
    timeout: float
    drain: float
    settle: float
    max_lateness: float
    model: str
    tokenizer: str | None
    text: bool
    vocab_size: int
    ignore_eos: bool
    body: str | None
    header: list[str] | None
    out: Path | None
    html: Path | None
    as_json: bool
    compare: tuple[Path, Path] | None
    from_file: Path | None
    twin: str | None
    schema: bool
    check: bool

    def workload(self) -> Workload:
        """A trace's requests keep their lengths unless shortened."""
        prompt, output = ("", "") if self.trace else (DEFAULT_PROMPT, DEFAULT_OUTPUT)
        count, _, tokens = (self.prefixes or "0x0").partition("x")
        if not (count.isdigit() and tokens.isdigit()):
            raise InvalidArgument(
                f"write 4x128: texts, and tokens of each, got {self.prefixes!r}", field="prefixes"
            )
        lengths = (self.prompt_tokens or prompt, self.output_tokens or output)
        workload = Workload(*lengths, self.cv, self.trace, int(count), int(tokens))
        workload.check()
        return workload

    def settings(self) -> Settings:
        return Settings(
            workload=self.workload(),
            slo=Slo(self.ttft, self.tpot),
            attainment=self.attainment,
            duration_s=self.duration,
            warmup_s=self.warmup,
            tail_s=self.tail,
            rounds=self.rounds,
            seed=self.seed,
            salt=int(time.time() * 1e3) if self.salt is None else self.salt,
            max_lateness_s=self.max_lateness,
            settle_s=self.settle,
            limits=Limits(self.timeout, self.drain),
        )

    def options(self) -> Options:
        body = _json_object(self.body) if self.body else {}
        headers = dict(_header(line) for line in self.header or ())
        return Options(
            self.model, self.ignore_eos, seed=self.seed, as_text=self.text, body=body, headers=headers
        )

    def question(self) -> Question:
        if self.find_rate:
            if self.ttft is None and self.tpot is None:
                raise InvalidArgument("a search needs targets: --ttft, --tpot or both", field="find_rate")
            if self.rates is not None:
                raise InvalidArgument("either these or --find-rate", field="rates")
            return Question((), self.rate or 1.0, self.precision, self._words(), self.vocab_size)
        if self.rate is not None and self.rates is not None:
            raise InvalidArgument("either this or --rates", field="rate")
        listed: tuple[float | None, ...] = _rates(self.rates) if self.rates else (self.rate,)
        if bad := [rate for rate in listed if rate is not None and not 0 < rate < math.inf]:
            raise InvalidArgument(f"must be a positive number, got {bad[0]:g}", field="rate")
        if listed == (None,) and self.trace is None:
            raise InvalidArgument("give --rate, --rates or --find-rate", field="rate")
        return Question(listed, None, self.precision, self._words(), self.vocab_size)

    def _words(self) -> Tokenizer | None:
        if self.tokenizer is None:
            if self.text:
                raise InvalidArgument("words need --tokenizer", field="text")
            return None
        return load_tokenizer(str(locate(self.tokenizer)))


def bench(asked: Asked) -> None:
    """Exits with one of the codes that the command's help lists."""
    if asked.schema:
        print(json.dumps(schema(), indent=2))
    elif asked.compare is not None:
        _compare(asked, *asked.compare)
    elif asked.from_file is not None:
        results = read(asked.from_file)
        results.pools = pooled(results.runs)
        _shown(asked, results)
    else:
        _measure(asked)


def _measure(asked: Asked) -> None:
    if asked.twin is not None:
        profile(asked.twin)  # a slip is told before all the measuring
    urls = asked.target or [f"baton=grpc://{find_endpoint(None)}"]
    targets = parse_targets(urls, asked.options())
    question, settings = asked.question(), asked.settings()
    so_far: list[Results] = []

    def keep(results: Results) -> None:
        so_far[:] = [results]
        if asked.out is not None:
            write(results, asked.out)

    with Progressing(notes, settings.duration_s) as progress:
        try:
            uvloop.run(measure(targets, settings, question, progress.show, keep))
        finally:
            progress.stop()
            if so_far and sys.exc_info()[0] is not None:  # what is measured is not lost
                _print(asked, so_far[0])
    _shown(asked, so_far[0])


def _shown(asked: Asked, results: Results) -> None:
    if asked.twin is not None:
        path = Path(asked.twin)
        way_s = client_s(path) if path.suffix else 0.0
        results.twins = twins(results, profile(asked.twin), way_s, _router)
        if asked.out is not None:
            write(results, asked.out)
    _print(asked, results)
    answered = {run.target for run in results.runs if run.summary.ok}
    if any(run.target not in answered for run in results.runs):
        sys.exit(EXIT_FAILURE)
    if any(run.invalid for run in results.runs):
        sys.exit(EXIT_INVALID)
    wanted = results.experiment.attainment
    kept = [pool.summary.goodput.attainment >= wanted for pool in results.pools]
    if asked.check and not all(kept):
        sys.exit(EXIT_MISSED)


def _router(section: dict[str, Any]) -> RouterConfig:
    """InvalidArgument: settings that this version does not know."""
    try:
        return machine_config(RouterSection(**section), 0)
    except ValidationError as error:
        raise InvalidArgument(f"the target's router has settings unknown here: {error}") from None


def _print(asked: Asked, results: Results) -> None:
    if asked.html is not None:
        asked.html.write_text(report.page_of(results), encoding="utf-8")
    if asked.as_json:
        print(to_json(results).decode())
        return
    for number, table in enumerate(tables(results)):
        if number:
            answers.print()
        answers.print(table)
    for line in complaints(results.runs):
        notes.print(f"[yellow]{line}[/]" if notes.is_terminal else line)


def _compare(asked: Asked, first: Path, second: Path) -> None:
    found = comparison(read(first), read(second), (first.stem, second.stem))
    if asked.html is not None:
        asked.html.write_text(report.page_of_comparison(found), encoding="utf-8")
    if asked.as_json:
        print(found.as_json())
    else:
        for table in found.tables():
            answers.print(table)
        for line in found.notes:
            notes.print(f"note: {line}")


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidArgument(f"write 0.5,1,2, got {text!r}", field="rates") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"is not JSON: {error}", field="body") from None
    if not isinstance(found, dict):
        raise InvalidArgument("is no JSON object", field="body")
    return found


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise InvalidArgument(f"write Name: value, got {line!r}", field="header")
    return name.strip(), value.strip()
