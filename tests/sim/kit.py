"""Small clusters and workloads for tests of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from baton.core.load import Role
from baton.core.request import Slo
from baton.sim.cost import MeasuredCost
from baton.sim.faults import Apart, Cancel, Drain, Fault, Kill, Slow, Stale, TakeRole
from baton.sim.results import RequestResult
from baton.sim.spec import ClusterSpec, NetworkSpec, Profile
from baton.sim.workload.arrival import Arrival

COST = MeasuredCost(prefill=(0.002, 1e-4, 1e-8), decode=((1, 0.005), (8, 0.008)), context_s=1e-6)
SMALL = Profile(
    name="small",
    cost=COST,
    kv_bytes_per_token=1000,
    num_blocks=80,
    nic_bytes_s=1e7,
    write_s=0.0005,
    block_size=8,
    max_model_len=400,
    max_batch_tokens=64,
    chunk_tokens=32,
    max_running=6,
    noise=0.05,
)
DECODE_STEP_S = 0.008  # the longest of these nodes, about


def cluster(prefill: int = 1, decode: int = 1, both: int = 0, **network: float) -> ClusterSpec:
    spec = ClusterSpec.pools(SMALL, prefill=prefill, decode=decode, both=both)
    return replace(spec, network=NetworkSpec(**network))  # type: ignore[arg-type]


def arrivals(seed: int, count: int, rate: float = 10.0, longest: int = 100) -> Iterator[Arrival]:
    """Poisson, half of them with a prefix that others have too."""
    dice = Random(f"arrivals/{seed}")
    at_s = 0.0
    for _ in range(count):
        at_s += dice.expovariate(rate)
        prefix = (dice.randrange(3), dice.randrange(3)) if dice.random() < 0.5 else ()
        slo = Slo(1.0, 0.05) if dice.random() < 0.5 else Slo()
        yield Arrival(
            at_s, dice.randint(1, longest), dice.randint(1, 40), prefix, 16, slo, dice.choice([0, 0, 0, 1])
        )


def faults(seed: int, names: tuple[str, ...], count: int, until_s: float) -> tuple[Fault, ...]:
    dice = Random(f"faults/{seed}")
    return tuple(_fault(dice, names, dice.random() * until_s) for _ in range(count))


def _fault(dice: Random, names: tuple[str, ...], at_s: float) -> Fault:
    node_id = dice.choice(names)
    return dice.choice(
        (
            Kill(at_s, node_id, dice.random(), dice.random() < 0.3),
            Slow(at_s, node_id, 1 + 4 * dice.random()),
            Apart(at_s, (node_id,), 3 * dice.random()),
            Stale(at_s, node_id, dice.random()),
            TakeRole(at_s, node_id, dice.choice(tuple(Role))),
            Drain(at_s, node_id, dice.random() < 0.3),
            Cancel(at_s, dice.randrange(40)),
        )
    )


def by_number(results: list[RequestResult]) -> list[RequestResult]:
    return sorted(results, key=lambda result: result.number)


def same(leapt: RequestResult, stepped: RequestResult) -> bool:
    """But for one thing: an answer that breaks off in the middle of a leap has its last tokens when somebody
    looks, which is before the step under way ends."""
    if leapt == stepped:
        return True
    if leapt.ok or leapt.last_token_s is None or stepped.last_token_s is None:
        return False
    late_s = leapt.last_token_s - stepped.last_token_s
    return 0.0 < late_s < DECODE_STEP_S and replace(leapt, last_token_s=stepped.last_token_s) == stepped
