"""Which sequences a node generates, and what gives way when KV blocks run out. Pure; runs in the engine thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baton.core.batch import Row, RowOutput
from baton.core.errors import BatonError
from baton.core.kvcache import KvCache
from baton.core.node_effects import Admit, Key, NodeEffect
from baton.core.sequence import Sequence
from baton.decode_node.limits import DecodeLimits, DecodeStats


class DecodeScheduler:
    """Step: `schedule` -> run the rows -> `complete`. Between the two only admit, adopt, abort, fail are called.

    reclaim: takes blocks back from prompts on the same pool (PrefillScheduler.reclaim), before a sequence here
    is preempted. revision: the model's identity in prefix keys.
    """

    def __init__(
        self, kv: KvCache, limits: DecodeLimits, revision: str, reclaim: Callable[[int], int] | None = None
    ) -> None:
        raise NotImplementedError

    def admit(self, now: float, admit: Admit) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def adopt(self, now: float, sequence: Sequence) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def abort(self, key: Key, *, silent: bool = False) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def fail(self, key: Key, error: BatonError) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def schedule(self, now: float, budget_tokens: int) -> list[Row]: ...  # type: ignore[empty-body]

    def complete(self, now: float, outputs: Mapping[Key, RowOutput]) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def expire(self, now: float) -> list[NodeEffect]: ...  # type: ignore[empty-body]

    def next_wakeup(self) -> float | None: ...

    def headroom_blocks(self) -> int:
        """Blocks to leave free for what is here already: growth of the batch, and preempted sequences."""
        raise NotImplementedError

    @property
    def busy(self) -> bool: ...  # type: ignore[empty-body]

    def stats(self) -> DecodeStats: ...  # type: ignore[empty-body]

    def check(self) -> None: ...
