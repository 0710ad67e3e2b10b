"""The shm backend against the contract, plain and under an idle and a busy fault injector."""

from __future__ import annotations

from baton.kv_transfer.faulty import Faults
from tests.kv_transfer.conformance import Conformance, FaultyConformance


class TestShm(Conformance):
    kind = "shm"


class TestShmUnderIdleFaults(Conformance):
    kind = "shm"
    faults = Faults()


class TestShmUnderFaults(FaultyConformance):
    kind = "shm"
