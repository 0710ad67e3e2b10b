"""The tcp backend against the contract, plain and under an idle and a busy fault injector."""

from __future__ import annotations

from baton.kv_transfer.faulty import Faults
from tests.kv_transfer.conformance import Conformance, FaultyConformance


class TestTcp(Conformance):
    kind = "tcp"


class TestTcpUnderIdleFaults(Conformance):
    kind = "tcp"
    faults = Faults()


class TestTcpUnderFaults(FaultyConformance):
    kind = "tcp"
