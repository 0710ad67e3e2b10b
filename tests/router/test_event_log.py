"""The log holds every event exactly, and its replay is the run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.batch import TokenLogprobs
from baton.core.errors import BatonError, Code, error_for
from baton.core.load import LoadReport, Role
from baton.core.request import Request, SamplingParams
from baton.router.event_codec import EVENTS, BadEvent, decode_event, encode, encode_event
from baton.router.event_log import EventLog, read, replay
from baton.router.events import Arrived, Effect, Event, KvChanged, NodeFailed, Tick, TokensMade
from baton.router.machine import RouterMachine
from baton.router.machine_config import RouterConfig
from baton.router.planner import PlannerConfig

from .world import World

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(
    BatonError,
    st.builds(
        error_for,
        st.sampled_from([Code.UNAVAILABLE, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED, Code.INTERNAL]),
        st.text(max_size=8),
        field=st.text(max_size=4),
        retry_after_s=st.none() | st.floats(0, 10),
    ),
)


def same(a: object, b: object) -> bool:
    """Equality in which two errors with the same code and texts are equal."""
    return repr(plain(a)) == repr(plain(b))


def plain(value: object) -> object:
    return encode(value) if dataclasses.is_dataclass(value) else value


@given(st.one_of([st.from_type(kind) for kind in EVENTS.values()]))
def test_every_event_survives_the_trip_through_text(event: Event) -> None:
    back = decode_event(json.loads(json.dumps(encode_event(event), allow_nan=False)))
    assert type(back) is type(event)
    assert same(back, event)


def test_details_survive() -> None:
    request = Request("é\n", (1, 2), SamplingParams(logit_bias=((3, -1.5),), logprobs=0), output_ids=(7,))
    for event in (
        Arrived(request, 1e-9),
        TokensMade("r", 1, "n", 3, (4,), (TokenLogprobs(4, -0.1, ((4, -0.1), (5, -2.5))),)),
        KvChanged("n", "i", stored=(b"\x00\xff",), reset=True),
        Tick(),
    ):
        assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


def test_error_keeps_code_field_and_hint() -> None:
    for code in (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT):
        error = error_for(code, "m", field="f", retry_after_s=1.5)
        back = decode_event(encode_event(NodeFailed("r", 0, "n", error)))
        assert isinstance(back, NodeFailed)
        assert type(back.error) is type(error)
        assert (back.error.message, back.error.field, back.error.retry_after_s) == ("m", "f", 1.5)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"type": "Nope"},
        {"type": "Cancelled"},
        {"type": "Cancelled", "request_id": "r", "more": 1},
        {"type": "OperatorRole", "node_id": "n", "role": "king"},
        {"type": "KvChanged", "node_id": "n", "incarnation": "i", "stored": ["zz"]},
    ],
)
def test_what_is_no_event_is_refused(value: object) -> None:
    with pytest.raises(BadEvent):
        decode_event(value)


PLAIN = RouterConfig(max_queued=8, lease_s=2.0)
TARGETS = replace(
    PLAIN, ttft_s=0.2, tpot_s=0.02, admission="reject", planner=PlannerConfig(every_s=1.0, patience=1)
)


@pytest.mark.parametrize("config", [PLAIN, TARGETS], ids=["plain", "targets"])
@pytest.mark.parametrize("seed", range(5))
def test_replay_of_a_random_run_gives_identical_effects(
    tmp_path: Path, seed: int, config: RouterConfig
) -> None:
    path = tmp_path / "events.jsonl"
    did: list[list[Effect]] = []
    with EventLog(path, config) as log:
        world = World(RouterMachine(config), Random(seed), log.append)
        world.run(600)
        did = world.effects_by_step
    again = [effects for _, _, effects in replay(path)]
    assert sum(len(effects) for effects in did) > 300
    assert len(again) == len(did)
    for mine, theirs in zip(did, again, strict=True):
        assert [plain(e) for e in mine] == [plain(e) for e in theirs]


def test_log_stops_at_its_limit_and_stays_replayable(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, RouterConfig(), max_bytes=2000) as log:
        for i in range(1000):
            log.append(float(i), Tick())
        assert log.full
    assert path.stat().st_size <= 2000
    assert 10 < len(list(replay(path))) < 1000


def test_torn_last_line_ends_the_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, RouterConfig()) as log:
        log.append(1.0, Tick())
        log.append(2.0, Tick())
    path.write_text(path.read_text()[:-5])
    assert [now for now, _ in read(path)[1]] == [1.0]


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"something": "else"}\n')
    with pytest.raises(BadEvent):
        read(path)


def test_reports_keep_their_samples() -> None:
    load = LoadReport(1, Role.BOTH, prefill_samples=((1, 2, 0.5),), transfer_samples=((3, 0.25),))
    assert same(decode_event(encode_event(_reported(load))), _reported(load))


def _reported(load: LoadReport) -> Event:
    return EVENTS["NodeReported"]("n", "i", load)  # type: ignore[no-any-return]
