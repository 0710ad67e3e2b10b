"""What a run's watch keeps: roles over time, samples at a distance."""

from dataclasses import replace

from baton.core.load import LoadReport, Role
from baton.router.events import NodeJoined, NodeLost, NodeReported
from baton.sim.experiments.timeline import GONE, Stay, Timeline
from tests.router.machine_kit import node


def report(seq: int, role: Role, **fields: int) -> NodeReported:
    base = LoadReport(seq, role, blocks_total=100, blocks_free=75)
    return NodeReported("p0", "p0", replace(base, **fields))


def test_a_node_that_changes_its_role_and_dies():
    timeline = Timeline()
    timeline.watch(0.0, NodeJoined(node("p0", Role.PREFILL)), [])
    timeline.watch(1.0, report(2, Role.PREFILL), [])
    timeline.watch(2.0, report(3, Role.DECODE), [])
    timeline.watch(3.0, NodeLost("p0", "p0", "gone"), [])
    timeline.watch(5.0, NodeJoined(node("p1", Role.DECODE)), [])
    assert timeline.stays() == [
        Stay("p0", 0.0, 2.0, "prefill"),
        Stay("p0", 2.0, 3.0, "decode"),
        Stay("p0", 3.0, 5.0, GONE),
        Stay("p1", 5.0, 5.0, "decode"),
    ]
    assert timeline.changes == 2


def test_samples_keep_their_distance():
    timeline = Timeline(every_s=1.0)
    for tenth in range(31):
        timeline.watch(tenth / 10, report(tenth + 2, Role.DECODE, running=tenth, waiting=1), [])
    samples = timeline.lanes["p0"].samples
    assert [at for at, _, _ in samples] == [0.0, 1.0, 2.0, 3.0]
    assert samples[-1] == (3.0, 31, 0.25)
