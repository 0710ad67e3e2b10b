"""The inproc backend against the contract, plain and under an idle and a busy fault injector."""

from __future__ import annotations

from baton.kv_transfer.faulty import Faults
from tests.kv_transfer.conformance import Conformance, FaultyConformance


class TestInproc(Conformance):
    kind = "inproc"


class TestInprocUnderIdleFaults(Conformance):
    kind = "inproc"
    faults = Faults()


class TestInprocUnderFaults(FaultyConformance):
    kind = "inproc"
