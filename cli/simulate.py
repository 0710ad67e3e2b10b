"""`baton simulate`: what would a cluster do with a load?

Options only; the work is in `cli.simulate_run` and `cli.simulate_compare`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LENGTHS = "as 512, or 100-900 for any number between; with a trace: its longest"
Traces = Annotated[
    list[Path] | None,
    typer.Option("--trace", help="Replay a trace: Mooncake .jsonl, Azure .csv, ShareGPT .json."),
]
Rate = Annotated[
    float | None, typer.Option(min=1e-6, help="Requests per second; default: the trace's own pace.")
]
Burst = Annotated[
    float, typer.Option("--cv", help="Gaps between requests: 1 Poisson, 0 all alike, above 1 bursts (gamma).")
]
PromptTokens = Annotated[
    str | None, typer.Option(help=f"Tokens of a prompt, {LENGTHS}. [default: 512]", show_default=False)
]
OutputTokens = Annotated[
    str | None, typer.Option(help=f"Tokens of an answer, {LENGTHS}. [default: 128]", show_default=False)
]
Prefixes = Annotated[
    str | None, typer.Option("--prefixes", metavar="NxTOKENS", help="Begin each prompt with one of N texts.")
]
Requests = Annotated[int | None, typer.Option(min=2, help="The first so many. [default: all, or 1000]")]
Skip = Annotated[int, typer.Option(min=0, help="Begin a trace after so many of its requests.")]
Ttft = Annotated[float | None, typer.Option("--ttft", help="Target: seconds to the first token.")]
Tpot = Annotated[float | None, typer.Option("--tpot", help="Target: mean seconds per token after it.")]
Attainment = Annotated[
    float, typer.Option(min=0.01, max=1.0, help="Share of requests that have to meet both targets.")
]
ProfileName = Annotated[
    str,
    typer.Option(
        "--profile",
        help="Kind of node: smollm2-cpu, llama-3.1-8b@h100, llama-3-70b@h200x4 (4 per node), ...; or a file.",
    ),
]
DecodeProfileName = Annotated[
    str | None, typer.Option("--decode-profile", help="Kind of decode nodes, where they differ.")
]
Prefill = Annotated[int | None, typer.Option(min=0, help="Prefill nodes.")]
Decode = Annotated[int | None, typer.Option(min=0, help="Decode nodes.")]
Both = Annotated[int | None, typer.Option(min=0, help="Nodes that do both.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "--file", "-f", help="A deployment's file: its nodes and router.")
]
PolicyName = Annotated[str, typer.Option(help="Baton, or a published policy by its name.")]
Planner = Annotated[
    bool | None, typer.Option("--planner/--no-planner", help="Whether nodes change roles by themselves.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same run.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="All policies against each other, each at its own highest rate.")
]
Nodes = Annotated[int, typer.Option(min=2, help="With --compare: nodes, to be split in the best way.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", help="With --compare: these policies. May be repeated.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="With --compare: 300 requests of each trace, rates within 10 %.")
]
Precision = Annotated[float, typer.Option(min=0.005, max=0.5, help="With --compare: of rates.")]
Workers = Annotated[int | None, typer.Option(min=1, help="With --compare: processes; default: all cores.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON, not as a table.")]
Html = Annotated[Path | None, typer.Option(help="Write a report with plots.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write results as JSON.")]


def simulate(  # noqa: PLR0913 - a command has as many parameters as options
    trace: Traces = None,
    rate: Rate = None,
    cv: Burst = 1.0,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    prefixes: Prefixes = None,
    requests: Requests = None,
    skip: Skip = 0,
    ttft: Ttft = None,
    tpot: Tpot = None,
    attainment: Attainment = 0.9,
    profile: ProfileName = "llama-3.1-8b@h100",
    decode_profile: DecodeProfileName = None,
    prefill: Prefill = None,
    decode: Decode = None,
    both: Both = None,
    config: ConfigFile = None,
    policy: PolicyName = "Baton",
    planner: Planner = None,
    seed: Seed = 0,
    compare: Compare = False,
    nodes: Nodes = 8,
    only: Only = None,
    quick: Quick = False,
    precision: Precision = 0.03,
    workers: Workers = None,
    as_json: AsJson = False,
    html: Html = None,
    out: Out = None,
) -> None:
    """Run a load through a simulated cluster: its router and schedulers are the real ones, time is modelled.

    Say targets (--ttft, --tpot) to see goodput. With --compare: at which rate does each policy still keep the
    targets for the wanted share of requests, and how do all do at the best published one's?
    """
    given = dict(locals())
    from baton.cli.simulate_asked import Asked

    asked = Asked(**given)
    if compare:
        from baton.cli.simulate_compare import run_compare

        run_compare(asked)
    else:
        from baton.cli.simulate_run import run_once

        run_once(asked)
