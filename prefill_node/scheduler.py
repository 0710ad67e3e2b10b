"""Which prompts a node computes, and in which pieces. Pure; runs in the engine thread."""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.batch import Row, RowOutput
from baton.core.errors import BatonError
from baton.core.kvcache import KvCache
from baton.core.node_effects import Key, NodeEffect
from baton.core.request import Request
from baton.core.sequence import Sequence
from baton.prefill_node.limits import PrefillLimits, PrefillStats


class PrefillScheduler:
    """Step: `schedule` -> run the rows -> `complete`. Between the two only add, abort, fail, release are called.

    revision: the model's identity in prefix keys (see core.prefix.root_key).
    """

    def __init__(self, kv: KvCache, limits: PrefillLimits, revision: str) -> None:
        raise NotImplementedError

    def add(self, now: float, request: Request, deadline_s: float | None, *, remote: bool) -> None:
        """Queue a request. remote: its KV goes to another node, and a hand-off was (or is about to be) started for
        it, so its blocks stay until `release`; not remote: `take` follows Prefilled."""

    def abort(self, key: Key, *, silent: bool = False) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def fail(self, key: Key, error: BatonError) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def schedule(self, now: float, budget_tokens: int) -> list[Row]: ...  # type: ignore[empty-body]

    def complete(self, now: float, outputs: Mapping[Key, RowOutput]) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def release(self, key: Key) -> None: ...

    def take(self, key: Key) -> Sequence: ...  # type: ignore[empty-body]

    def reclaim(self, blocks: int) -> int:
        """Decode on the same pool needs blocks: preempt the youngest prompts in computation. Returns blocks freed."""
        raise NotImplementedError

    def expire(self, now: float) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def next_wakeup(self) -> float | None: ...

    def wanted_blocks(self) -> int:
        """Blocks that a starving prompt waits for: others should leave them free (`HandoffSink.pump`)."""
        raise NotImplementedError

    @property
    def busy(self) -> bool: ...  # type: ignore[empty-body]

    def stats(self) -> PrefillStats: ...  # type: ignore[empty-body]

    def check(self) -> None: ...
