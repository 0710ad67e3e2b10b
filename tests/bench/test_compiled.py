"""The copy that `make compiled` makes: that its sources mean the same, and that they compile."""

from __future__ import annotations

import inspect
import shutil
import sys
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from baton.bench.compiled.again import replace
from baton.bench.compiled.build import APART, PACKAGE, SMALL_RUN, compile_copy, copy, file_of, modules, python
from baton.bench.compiled.source import rewritten

SAMPLE = '''
from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import mul
from typing import ClassVar, NamedTuple

from baton.core.value import value

MOST, LEAST = 2**10, -1.5
_PARTS = 3  # of a whole
NAMES = ("a", "b")


@dataclass(frozen=True, slots=True)
class Spec:
    size: int
    names: tuple[str, ...] = ("a", "b")
    parts: dict[str, int] = field(default_factory=lambda: {"c": 1})
    LIMIT: ClassVar[int] = 3


@dataclass(slots=True, eq=False)
class Job:
    number: int
    key: tuple[int, int] = field(init=False)
    held: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.key = (self.number, self.number + 1)


@value
class Sent:
    """Has a text."""

    spec: Spec
    cost_s: float = 0.5

    @property
    def total(self) -> float:
        return self.cost_s * self.spec.size


@value
class Nothing:
    """No fields."""


class Leg(NamedTuple):
    cost_s: float
    late: float = 0.25

    @property
    def total_s(self) -> float:
        return self.cost_s + self.late


def dot(one: list[float], other: list[float]) -> float:
    total: float = sum(map(mul, one, other))
    return total


def cheaper(leg: Leg) -> Leg:
    return replace(leg, cost_s=leg.cost_s / 2)


def pairs(one: list[int], other: list[int]) -> list[tuple[int, int]]:
    return list(zip(one, other, strict=True))
'''


@dataclass(frozen=True)
class MemoryLimits:
    tokens: int
    rows: int = 2


class Again:
    """Runs rewritten sources as modules of another name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "again.py"
        self._monkeypatch = monkeypatch

    def run(self, source: str) -> ModuleType:
        self._file.write_text(rewritten(source))
        spec = spec_from_file_location("again", self._file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        self._monkeypatch.setitem(sys.modules, "again", module)  # where dataclass looks
        spec.loader.exec_module(module)
        return module


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Again:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Again(tmp_path, monkeypatch)


def test_a_rewritten_value_is_made_compared_and_copied_as_before(again: Again) -> None:
    sample = again.run(SAMPLE)
    one, other = sample.Sent(sample.Spec(4)), sample.Sent(sample.Spec(size=4, names=("a", "b")), 0.5)
    assert one == other != sample.Sent(sample.Spec(5))
    assert one.total == 2.0
    assert one.spec.parts == {"c": 1}
    assert one.spec.parts is not other.spec.parts
    assert sample.Spec(1, parts={}).parts == {}
    assert repr(one) == "Sent(spec=Spec(size=4, names=('a', 'b'), parts={'c': 1}), cost_s=0.5)"
    assert deepcopy(one) == one
    assert {sample.Nothing(): 1}[sample.Nothing()] == 1


def test_a_rewritten_job_fills_in_what_is_not_asked_for(again: Again) -> None:
    sample = again.run(SAMPLE)
    job = sample.Job(7)
    assert (job.number, job.key, job.held) == (7, (7, 8), [])
    assert job != sample.Job(7)
    with pytest.raises(TypeError):
        sample.Job(7, (1, 2))


def test_a_named_tuple_becomes_a_value(again: Again) -> None:
    sample = again.run(SAMPLE)
    leg = sample.Leg(1.0)
    assert (leg.cost_s, leg.late, leg.total_s) == (1.0, 0.25, 1.25)
    assert leg == sample.Leg(1.0, late=0.25) != sample.Leg(1.0, 0.5)
    assert {leg: 1}[sample.Leg(1.0)] == 1
    assert sample.cheaper(leg) == sample.Leg(0.5)
    assert not isinstance(leg, tuple)


def test_numbers_are_final_and_zip_is_plain(again: Again) -> None:
    sample = again.run(SAMPLE)
    assert (sample.MOST, sample.LEAST, sample._PARTS, sample.NAMES) == (1024, -1.5, 3, ("a", "b"))
    assert sample.pairs([1, 2], [3, 4]) == [(1, 3), (2, 4)]
    lines = rewritten(SAMPLE).split("\n")
    assert {"MOST: Final = 2 ** 10", "LEAST: Final = -1.5", "_PARTS: Final = 3"} <= set(lines)
    assert 'NAMES = ("a", "b")' in lines
    assert "    return list(zip(one, other))" in lines
    assert not any("map(" in line for line in lines)
    assert sample.dot([1.0, 0.1], [0.5, 3.0, 9.0]) == 0.5 + 0.1 * 3.0


def test_replace_makes_another_of_the_same_class() -> None:
    limits = MemoryLimits(tokens=3)
    assert replace(limits, rows=5) == MemoryLimits(tokens=3, rows=5)
    assert limits == MemoryLimits(tokens=3)
    with pytest.raises(TypeError):
        replace(limits, pages=1)


def test_each_init_asks_for_the_same_fields(again: Again) -> None:
    checked = 0
    for name in modules():
        module = again.run(file_of(name, PACKAGE).read_text())
        for kind in vars(import_module(name)).values():
            named = isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))
            if not named or kind.__module__ != name:
                continue
            new = getattr(module, kind.__name__)
            names = getattr(kind, "_fields", None) or tuple([field.name for field in fields(kind)])
            assert names == tuple([field.name for field in fields(new)])
            old_asked, new_asked = (inspect.signature(each).parameters.values() for each in (kind, new))
            assert [(p.name, p.kind, p.default is p.empty) for p in old_asked] == [
                (p.name, p.kind, p.default is p.empty) for p in new_asked
            ], kind
            checked += 1
    assert checked > 150


def test_what_stays_apart_is_there_and_what_counts_is_not_among_it() -> None:
    assert all(file_of(name, PACKAGE).is_file() for name in APART)
    assert {"baton.router.machine", "baton.node.core", "baton.sim.clock"} <= set(modules())


def test_a_run_by_rewritten_sources_has_the_same_results(tmp_path: Path) -> None:
    copy(modules(), tmp_path)
    assert python(SMALL_RUN, tmp_path) == python(SMALL_RUN)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_modules_of_a_copy_compile(tmp_path: Path) -> None:
    names = ["baton.core.cost", "baton.router.order"]
    copy(names, tmp_path)
    compile_copy(names, tmp_path)
    code = """
from copy import deepcopy
from baton.core import cost
from baton.router import order
from baton.core.cost import Estimate
from baton.router.order import Order
assert not cost.__file__.endswith(".py") and not order.__file__.endswith(".py")
values = Order()
for number, figure in enumerate((3.0, 1.0, 2.0)):
    values.put(str(figure), figure, number)
print(*values, deepcopy(Estimate(0.5, 0.25)))
"""
    assert python(code, tmp_path) == "1.0 2.0 3.0 Estimate(mean_s=0.5, sigma_s=0.25)\n"
