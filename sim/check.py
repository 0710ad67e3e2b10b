"""What must hold of a simulated cluster after every event, and what must be left of it then: nothing."""

from __future__ import annotations

from collections import Counter

from baton.core.kvcache import KvCache
from baton.node.core import NodeCore
from baton.sim.node import SimNode


def check_node(node: SimNode) -> None:
    """Raise AssertionError unless every block is where some part of the node says it is."""
    node.core.check()
    node.exporter.source.check()
    for row in node.engine.decoding:
        assert row.seq in node.owners, f"{row.seq} is decoded, and was never handed over"
    check_references(node.core)


def check_references(core: NodeCore) -> None:
    """Conservation: as many owners of each block as there are sequences and reservations that hold it."""
    held: Counter[int] = Counter()
    for part in (core.prefill, core.decode, core.sink, core.loans):
        for blocks in part.owned():
            held.update(blocks)
    kv: KvCache = core.kv
    assert len(held) == kv.pool.owned, "a block has an owner that nobody knows, or is held without one"
    for block, count in held.items():
        assert kv.pool.refs(block) == count, f"block {block}: {count} hold it, {kv.pool.refs(block)} counted"


def leftovers(node: SimNode) -> list[str]:
    """What a node that serves nobody should not have."""
    core, found = node.core, []
    if core.kv.pool.owned:
        found.append(f"{core.kv.pool.owned} blocks are owned")
    if core.kv.pool.quarantined:
        found.append(f"{core.kv.pool.quarantined} blocks are in quarantine")
    if core.has_work:
        found.append("there is work")
    if node.exporter.busy:
        found.append("hand-offs are under way")
    if node.owners:
        found.append(f"it thinks of {sorted(node.owners)[:3]} as running")
    return [f"{node.node_id}: {what}" for what in found]
