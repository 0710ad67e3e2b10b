"""Keeps the machine's view of a node's prefix cache: a snapshot, then its events, again after a gap."""

from __future__ import annotations

import asyncio

import grpc
import structlog

from baton.core.errors import BatonError
from baton.proto.v1 import node_pb2
from baton.router.driver import Driver
from baton.router.events import KvChanged
from baton.router.links import CALL_TIMEOUT_S, NodeLink
from baton.runtime.bus import MAX_KEY_BYTES, Gap, Subscriber
from baton.runtime.grpc_errors import from_rpc_error

log = structlog.get_logger(__name__)

RETRY_S = 1.0


async def watch_kv(link: NodeLink, driver: Driver) -> None:
    """Runs until cancelled. What it tells is a hint: a wrong one costs time, never a wrong token."""
    if not link.facts.bus_endpoint:
        return
    try:
        subscriber = Subscriber(link.facts.bus_endpoint)
    except BatonError as error:
        log.warning("no cache events from node", node=link.facts.node_id, error=str(error))
        return
    try:
        await _snapshot(link, driver, subscriber)
        async for item in subscriber:
            if isinstance(item, Gap):
                await _snapshot(link, driver, subscriber)
            elif item.incarnation == link.facts.incarnation:
                facts = link.facts
                changed = KvChanged(facts.node_id, facts.incarnation, tuple(item.stored), tuple(item.removed))
                driver.post(changed)
    finally:
        subscriber.close()


async def _snapshot(link: NodeLink, driver: Driver, subscriber: Subscriber) -> None:
    facts = link.facts
    while True:
        try:
            answer = await link.node.KvSnapshot(node_pb2.KvSnapshotRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            log.warning("no cache snapshot from node", node=facts.node_id, error=str(from_rpc_error(error)))
            await asyncio.sleep(RETRY_S)
            continue
        if answer.incarnation == facts.incarnation:
            keys = tuple(key for key in answer.keys if 0 < len(key) <= MAX_KEY_BYTES)
            driver.post(KvChanged(facts.node_id, facts.incarnation, stored=keys, reset=True))
            subscriber.resume(answer.incarnation, answer.bus_seq)
        return
