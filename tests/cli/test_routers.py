"""Several routers at one address, as one deployment to its operator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.cli.admin import figures, last_of, phases, plain
from baton.cli.routers import merged
from baton.proto.v1 import admin_pb2 as pb
from baton.proto.v1 import registry_pb2
from baton.proto.v1.common_pb2 import Role
from tests.cli.test_processes import baton, serving
from tests.models import write_model
from tests.patience import Patience


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def node(name: str, state: str, in_flight: int, running: int, report_age_s: float) -> pb.NodeState:
    return pb.NodeState(
        registration=registry_pb2.Registration(node_id=name),
        load=registry_pb2.LoadReport(running=running),
        state=state,
        in_flight=in_flight,
        report_age_s=report_age_s,
    )


def test_views_are_summed_and_nodes_are_as_last_heard_of() -> None:
    one = pb.GetClusterResponse(queued=1, in_flight=4, sharing=2, nodes=[node("a", "up", 4, 9, 0.5)])
    two = pb.GetClusterResponse(queued=2, in_flight=1, sharing=2)
    two.nodes.extend([node("b", "up", 0, 0, 0.1), node("a", "draining", 1, 7, 0.1)])
    whole = merged({"r1": one, "r2": two})
    assert (whole.router_id, whole.queued, whole.in_flight) == ("r1, r2", 3, 5)
    a, b = whole.nodes
    assert (a.registration.node_id, a.state, a.in_flight, a.load.running) == ("a", "up/draining", 5, 7)
    assert (b.registration.node_id, b.state) == ("b", "up")


def test_of_a_lost_node_no_figures_are_told() -> None:
    assert figures(node("a", "up", 0, 9, 0.1))[0] == "9"
    assert set(figures(node("a", "lost", 0, 9, 30.0))) == {"-"}
    assert figures(node("a", "up/lost", 0, 9, 0.1))[0] == "9"


def test_in_json_every_number_is_one() -> None:
    one = pb.GetClusterResponse(router_id="r", queued=1, nodes=[node("a", "up", 4, 9, 0.5)])
    one.nodes[0].load.steps = 2**40
    one.nodes[0].load.role = Role.ROLE_BOTH
    one.nodes[0].registration.kv_bytes_per_token = 4096
    found = plain(one)
    assert (found["router_id"], found["queued"]) == ("r", 1)
    (first,) = found["nodes"]
    assert first["load"] == {"role": "ROLE_BOTH", "running": 9, "steps": 2**40}
    assert first["registration"] == {"node_id": "a", "kv_bytes_per_token": 4096}
    assert first["report_age_s"] == 0.5


def test_the_last_node_of_a_phase_is_known() -> None:
    def serving_as(name: str, role: Role, state: str = "up") -> pb.NodeState:
        found = node(name, state, 0, 0, 0.0)
        found.load.role = role
        return found

    pair = [serving_as("p", Role.ROLE_PREFILL), serving_as("d", Role.ROLE_DECODE)]
    assert last_of(pair, "p", frozenset()) == ["prefill"]
    assert last_of(pair, "p", phases("both")) == []
    assert last_of(pair, "p", phases("decode")) == ["prefill"]
    assert last_of([*pair, serving_as("b", Role.ROLE_BOTH)], "p", frozenset()) == []
    assert last_of([*pair, serving_as("b", Role.ROLE_BOTH, "draining")], "p", frozenset()) == ["prefill"]
    assert last_of(pair, "stranger", frozenset()) == []


def states(registry: str) -> dict[str, str]:
    """By node, as one router sees them."""
    state = json.loads(baton("admin", "cluster", "--json", "--endpoint", registry).stdout)
    return {node["registration"]["node_id"]: node["state"] for node in state["nodes"]}


def until(registries: list[str], wanted: str) -> None:
    patience = Patience(10)
    while (seen := [states(registry) for registry in registries]) != [{"both-0": wanted}] * len(registries):
        assert patience.lasts(), seen


def test_all_routers_are_asked_and_told(model: Path) -> None:
    options = ("--both=1", "--set=engine.num_blocks=8", "--set=router.processes=2", "--log-level=warning")
    with serving(str(model), *options) as (_, said):
        registries = [process["registry"] for process in said["processes"] if process["registry"]]
        assert len(registries) == 2
        words = baton("admin", "cluster").stdout
        assert words.count("in flight at router router-0-") == 1
        assert words.count("in flight at router router-1-") == 1
        for command, wanted in (((), "draining"), (("--resume",), "up")):
            done = baton("admin", "drain", "both-0", *command)
            assert done.returncode == 0
            lost = ["decode", "prefill"] if wanted == "draining" else []
            assert done.stderr.splitlines() == [
                f"warning: it was the last {phase} node: nothing can be served without one" for phase in lost
            ]
            assert done.stdout.startswith("both-0 gets ")
            until(registries, wanted)
