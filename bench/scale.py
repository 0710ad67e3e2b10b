"""`python -m baton.bench.scale [--nodes N] [--requests N]`: how long the simulator takes for a large cluster.

The processor time of the one process counts, so that neighbours on the machine matter less.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress

from baton.bench.report import Figure, table
from baton.sim import clock, scale
from baton.sim.workload.arrival import Arrival
from baton.sim.world import Results

LIMIT_S = 600.0
MILLION = 1_000_000


def never_collect() -> None:
    """A world makes no cycles (tests/sim/test_world.py), so looking for them is in vain."""
    gc.collect()
    gc.freeze()
    gc.disable()


def digest(results: Results) -> str:
    """The same for the same results: of two versions, say, or compiled and not."""
    every = hashlib.sha256()
    for result in results.requests:
        every.update(repr(result).encode())
    return every.hexdigest()[:16]


def compiled() -> bool:
    """Whether this is the copy that `make compiled` made."""
    return not str(clock.__file__).endswith(".py")


def main() -> int:
    """0 if a million requests would take less than ten minutes, else 1."""
    parser = argparse.ArgumentParser(prog="python -m baton.bench.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=MILLION)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = Console()
    console.print(f"seed {options.seed}, {'compiled' if compiled() else 'interpreted'}")
    with Progress(console=console) as progress:
        task = progress.add_task("requests", total=options.requests)

        def shown() -> Iterator[Arrival]:
            for number, arrival in enumerate(scale.arrivals(options.nodes, options.requests, options.seed)):
                if number % 1000 == 0:
                    progress.update(task, completed=number)
                yield arrival

        started_s = time.process_time()
        world = scale.world(options.nodes, options.seed)
        never_collect()
        results = world.run(shown())
        seconds = time.process_time() - started_s
        progress.update(task, completed=options.requests)
    summary = results.summary()
    console.print(
        f"{results.seconds:.1f} simulated seconds, {results.events:,} events; {summary.completed:,} of "
        f"{summary.requests:,} served, median TTFT {1e3 * summary.ttft_s.p50:.1f} ms, "
        f"TPOT {1e3 * summary.tpot_s.p50:.2f} ms; results {digest(results)}"
    )
    name = f"{options.requests:,} requests on {options.nodes:,} nodes"
    limit_s = LIMIT_S * options.requests / MILLION
    figure = Figure(name, seconds, "s", limit_s, "ten minutes per million", 1.0, higher_is_better=False)
    console.print(table([figure]))
    return 0 if figure.met else 1


if __name__ == "__main__":
    raise SystemExit(main())
