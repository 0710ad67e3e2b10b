"""What a node is asked to lend, checked before anything is done; and what a request says of a fetch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from baton.core.errors import BatonError, FailedPrecondition, InvalidArgument
from baton.core.model import Fingerprint, ModelInfo
from baton.kv_transfer.layout import KvLayout
from baton.prefill_node.link import Target
from baton.prefill_node.service import MAX_PATIENCE_S, PrefillService
from baton.proto.v1 import common_pb2 as common
from baton.proto.v1 import prefill_node_pb2 as pb

MODEL = ModelInfo("fake", 100, 64, (), Fingerprint("1", "fake", "w", "t", "g", "none", "float32", "native"))
LAYOUT = KvLayout(4, 0, 2, 0, 1, 8, "float32", 16)
ASKER = pb.DecodeTarget(node_id="asker", incarnation="a1", address="h:1")
NOWHERE: Any = None


class Port:
    def __init__(self) -> None:
        self.lent: list[Any] = []
        self.taken: list[Any] = []

    def arriving(self, key: Any) -> Any:
        return nullcontext()

    def prefill(self, router_id: str, request: Any, target: Any, lender: Any = None) -> None:
        self.taken.append(lender)

    async def lend(self, key: Any, target: Target, keys: tuple[bytes, ...]) -> int:
        self.lent.append((key, target, keys))
        return 4 * len(keys)


def lend_request(**changed: Any) -> pb.LendRequest:
    fields = {
        "request_id": "r",
        "attempt": 2,
        "target": ASKER,
        "block_size": 4,
        "kv_dtype": "float32",
        "keys": [b"a" * 16, b"b" * 16],
    }
    return pb.LendRequest(**(fields | changed))


async def test_what_is_asked_for_is_lent() -> None:
    port = Port()
    answer = await PrefillService(MODEL, LAYOUT, port, fetch=True).Lend(lend_request(), NOWHERE)
    assert answer.tokens == 8
    assert port.lent == [(("r", 2), Target("asker", "a1", "h:1"), (b"a" * 16, b"b" * 16))]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"block_size": 8}, FailedPrecondition),
        ({"kv_dtype": "int8"}, FailedPrecondition),
        ({"keys": []}, InvalidArgument),
        ({"keys": [b"a" * 15]}, InvalidArgument),
        ({"request_id": ""}, InvalidArgument),
        ({"target": None}, InvalidArgument),
    ],
)
async def test_what_makes_no_sense_is_refused(changed: dict[str, Any], error: type[BatonError]) -> None:
    port = Port()
    with pytest.raises(error):
        await PrefillService(MODEL, LAYOUT, port, fetch=True).Lend(lend_request(**changed), NOWHERE)
    assert not port.lent


async def test_where_it_is_off_nothing_is_lent_nor_asked_for() -> None:
    port = Port()
    service = PrefillService(MODEL, LAYOUT, port, fetch=False)
    with pytest.raises(FailedPrecondition, match="off"):
        await service.Lend(lend_request(), NOWHERE)
    await service.Prefill(prefill_request(tokens=4), NOWHERE)
    assert port.taken == [None]


def prefill_request(**fetch: Any) -> pb.PrefillRequest:
    fields = {"node_id": "lender", "incarnation": "l1", "address": "h:2", "patience_s": 1.0}
    return pb.PrefillRequest(
        router_id="router",
        request=common.NodeRequest(id="r", prompt_ids=range(1, 11), max_tokens=4),
        decode=ASKER,
        fetch=pb.Fetch(**(fields | fetch)),
    )


async def test_a_fetch_never_spoils_its_request() -> None:
    """More tokens than there are, or none: that is no reason to refuse it."""
    port = Port()
    service = PrefillService(MODEL, LAYOUT, port, fetch=True)
    await service.Prefill(prefill_request(tokens=1000, patience_s=1e9), NOWHERE)
    await service.Prefill(prefill_request(tokens=0), NOWHERE)
    lender, none = port.taken
    assert (lender.target.name, lender.tokens, lender.patience_s) == ("lender/l1", 10, MAX_PATIENCE_S)
    assert none is None
