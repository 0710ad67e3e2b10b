"""What both processes of the transfer benchmark agree on: the demo model's KV, 720 KiB a block."""

from __future__ import annotations

from baton.kv_transfer.layout import KvLayout

INCARNATION = "bench"
TRANSFER = 1


def layout_of(blocks: int) -> KvLayout:
    return KvLayout(16, 0, 30, 0, 3, 64, "float32", blocks)
