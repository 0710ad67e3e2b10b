"""`baton bench`: how fast does a deployment answer, and at which rate does it still keep its targets?

Options only; the work is in `cli.bench_run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="[NAME=]URL",
        help="grpc://HOST:PORT, http://HOST:PORT (completions) or http://HOST:PORT/v1/chat/completions. "
        "Several take turns. Default: the deployment that runs here.",
    ),
]
Rate = Annotated[float | None, typer.Option(help="Requests per second; for a search, where it begins.")]
Rates = Annotated[str | None, typer.Option(metavar="R,R,...", help="Several rates, one after the other.")]
FindRate = Annotated[
    bool, typer.Option("--find-rate", help="Search for the highest rate that keeps the targets.")
]
Precision = Annotated[float, typer.Option(help="Of the search: 0.05 for 5 %.")]
Duration = Annotated[float, typer.Option(help="Seconds in which requests are sent.")]
Warmup = Annotated[float, typer.Option(help="Seconds at the beginning that do not count.")]
Tail = Annotated[float, typer.Option(help="Seconds at the end that do not count.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often all of it is done, targets in turn.")]
LENGTHS = "as 256, or 100-400 for any number between; with a trace: its longest"
PromptTokens = Annotated[str | None, typer.Option(help=f"Tokens of a prompt, {LENGTHS}. [default: 256]")]
OutputTokens = Annotated[str | None, typer.Option(help=f"Tokens of an answer, {LENGTHS}. [default: 64]")]
Burst = Annotated[
    float, typer.Option("--cv", help="Gaps between requests: 1 Poisson, 0 all alike, above 1 bursts (gamma).")
]
Trace = Annotated[
    Path | None, typer.Option(help="Replay a trace: Mooncake .jsonl, Azure .csv, ShareGPT .json.")
]
Prefixes = Annotated[
    str | None, typer.Option("--prefixes", metavar="NxTOKENS", help="Begin each prompt with one of N texts.")
]
Ttft = Annotated[float | None, typer.Option("--ttft", help="Target: seconds to the first token.")]
Tpot = Annotated[float | None, typer.Option("--tpot", help="Target: mean seconds per token after it.")]
Attainment = Annotated[float, typer.Option(help="Share of requests that have to meet both targets.")]
Seed = Annotated[int, typer.Option(help="The same seed: the same times and lengths.")]
Salt = Annotated[
    int | None, typer.Option(min=0, help="The same salt: the same prompts, cached or not. Default: new ones.")
]
Timeout = Annotated[float, typer.Option(help="Seconds that a client waits for its answer.")]
Drain = Annotated[float, typer.Option(help="Seconds to wait for open requests at the end.")]
Settle = Annotated[float, typer.Option(help="Pause before each run, then a trial request; 0: neither.")]
MaxLateness = Annotated[
    float, typer.Option(help="Seconds that the generator may be late (P99) before a run does not count.")
]
Model = Annotated[str, typer.Option(help="Model to ask for; default: the target's first.")]
TokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help="Prompts of its words: a folder, a .gguf file, demo.")
]
AsText = Annotated[bool, typer.Option("--text", help="Send words, not token ids.")]
VocabSize = Annotated[
    int, typer.Option(min=0, help="Prompts of token ids below this; for servers that do not tell.")
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos/--stop-at-eos", help="Ask for answers of the full length.")
]
Body = Annotated[str | None, typer.Option(metavar="JSON", help="Fields to add to HTTP requests' bodies.")]
Header = Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="To add to HTTP requests.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write results as JSON (.json, .json.gz).")]
Html = Annotated[Path | None, typer.Option(help="Write a report with plots.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON, not as a table.")]
Compare = Annotated[
    tuple[Path, Path] | None, typer.Option(metavar="A B", help="Measure nothing: compare two results files.")
]
From = Annotated[Path | None, typer.Option("--from", help="Measure nothing: show a results file again.")]
TwinProfile = Annotated[
    str | None,
    typer.Option("--twin", metavar="PROFILE", help="Simulate the runs, too: a profile's name or file."),
]
Schema = Annotated[bool, typer.Option("--schema", help="Print the results' JSON schema.")]
Check = Annotated[
    bool, typer.Option("--check", help="Exit code 4 unless all targets keep the attainment at all rates.")
]


def bench(  # noqa: PLR0913 - a command has as many parameters as options
    target: Targets = None,
    rate: Rate = None,
    rates: Rates = None,
    find_rate: FindRate = False,
    precision: Precision = 0.05,
    duration: Duration = 60.0,
    warmup: Warmup = 0.0,
    tail: Tail = 0.0,
    rounds: Rounds = 1,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    cv: Burst = 1.0,
    trace: Trace = None,
    prefixes: Prefixes = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    attainment: Attainment = 0.9,
    seed: Seed = 0,
    salt: Salt = None,
    timeout: Timeout = 600.0,
    drain: Drain = 60.0,
    settle: Settle = 1.0,
    max_lateness: MaxLateness = 0.025,
    model: Model = "",
    tokenizer: TokenizerOption = None,
    text: AsText = False,
    vocab_size: VocabSize = 0,
    ignore_eos: IgnoreEos = True,
    body: Body = None,
    header: Header = None,
    out: Out = None,
    html: Html = None,
    as_json: AsJson = False,
    compare: Compare = None,
    from_file: From = None,
    twin: TwinProfile = None,
    schema: Schema = False,
    check: Check = False,
) -> None:
    """Send requests at a rate, whatever becomes of them; report latencies, goodput, errors.

    Exit codes: 0 measured; 1 a target gave no answer; 2 wrong usage; 3 some runs do not count, for the
    generator was late; 4 with --check: targets missed.
    """
    given = dict(locals())
    from baton.cli import bench_run

    bench_run.bench(bench_run.Asked(**given))
