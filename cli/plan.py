"""`baton plan`: which nodes serve a load best, and the deployment's file for them.

Options only; the work is in `cli.plan_run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.cli import simulate as options

Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        help="What to plan with: llama-3.1-8b@h100, with nodes of 1, 2, 4 and 8 GPUs; @h100x2, of two only; "
        "or a file. May be repeated.",
    ),
]
Devices = Annotated[int, typer.Option("--devices", "--gpus", min=1, help="GPUs (or hosts) to be spent.")]
Candidates = Annotated[
    int, typer.Option(min=1, help="Pairs of degrees and roles to simulate, the likeliest first.")
]
Model = Annotated[
    str | None,
    typer.Option(
        help="What the file says to serve: a folder, a .gguf file, demo; else a placeholder.",
        show_default=False,
    ),
]
Precision = Annotated[float, typer.Option(min=0.005, max=0.5, help="Of rates.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")]
Requests = Annotated[
    int, typer.Option(min=2, help="The first so many of the load, repeated as often as a rate needs.")
]
FileOut = Annotated[Path, typer.Option("--out", "-o", help="The deployment's file to write.")]


def plan(  # noqa: PLR0913 - a command has as many parameters as options
    trace: options.Traces = None,
    rate: options.Rate = None,
    cv: options.Burst = 1.0,
    prompt_tokens: options.PromptTokens = None,
    output_tokens: options.OutputTokens = None,
    prefixes: options.Prefixes = None,
    requests: Requests = 1000,
    ttft: options.Ttft = None,
    tpot: options.Tpot = None,
    attainment: options.Attainment = 0.9,
    profile: Profiles = None,
    devices: Devices = 8,
    candidates: Candidates = 6,
    model: Model = None,
    seed: options.Seed = 0,
    precision: Precision = 0.1,
    workers: Workers = None,
    as_json: options.AsJson = False,
    out: FileOut = Path("deployment.yaml"),
) -> None:
    """Search roles, parallel degrees and admission for the most requests per device within the targets.

    Degrees are of tensor parallelism; prefill and decode nodes may differ in theirs. All that fits is
    estimated, the likeliest are simulated.

    The load's rate does not matter but for the shape of a synthetic one: it is raised as far as the targets
    allow, and must be kept for as long as 20 TTFT targets and 3 answers at least. Takes minutes: fewer
    --candidates or a coarser --precision are faster. GPUs can be planned for, but not served yet.
    Exit code 1: no layout keeps the targets.
    """
    given = dict(locals())
    from baton.cli.plan_run import Wanted, run_plan

    run_plan(Wanted(**given))
