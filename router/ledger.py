"""What one router has under way on one node for one leg, and how much of it no report can include yet.

Totals are sums over entries: an entry is taken out with exactly the amounts it was put in with, and it exists
exactly as long as its attempt is on the node. So no way for a request to end can leak or double count, and
`check` can prove it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Work:
    """One attempt's demand on a node. seconds: predicted work. sent_s: it cannot begin before. seen_s: when
    the node came to know of it (None: it does not yet), so that reports made well after that include it.
    tpot_s: its target, if any."""

    seconds: float = 0.0
    tokens: int = 0
    blocks: int = 0
    seen_s: float | None = None
    tpot_s: float | None = None
    sent_s: float = 0.0


def _nothing() -> None:
    """Nobody wants to know."""


class Ledger:
    """Work by request id. An entry is `working` until `done` (it may stay on the node for other reasons), and
    recent until a report includes it. changed: called after each change of a total."""

    def __init__(self, changed: Callable[[], None] = _nothing) -> None:
        self._changed = changed
        self._entries: dict[str, Work] = {}
        self._working: dict[str, Work] = {}
        self._recent: dict[str, Work] = {}
        self._freed_s = -math.inf
        self.seconds = 0.0
        self.recent_seconds = 0.0
        self.recent_tokens = 0
        self.recent_blocks = 0
        self.targets: dict[float, int] = {}  # how many entries have each target

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def working(self) -> int:
        return len(self._working)

    @property
    def recent(self) -> int:
        return len(self._recent)

    def free_s(self, from_s: float) -> float:
        """When what no report includes yet will be done by a node that is free for it from then on: one after
        another, none before it was sent, or before what is known to have been done before it."""
        from_s = max(from_s, self._freed_s)
        for work in self._recent.values():
            from_s = max(from_s, work.sent_s) + work.seconds
        return from_s

    @property
    def behind_s(self) -> float:
        """Seconds of work that cannot have begun, as something before it is not done."""
        if not self._recent or len(self._working) > len(self._recent):
            return self.recent_seconds
        return self.recent_seconds - next(iter(self._recent.values())).seconds

    def put(self, key: str, work: Work) -> None:
        assert key not in self._entries, f"{key} is on this node already"
        self._entries[key] = self._working[key] = self._recent[key] = work
        self.seconds += work.seconds
        self.recent_seconds += work.seconds
        self.recent_tokens += work.tokens
        self.recent_blocks += work.blocks
        if work.tpot_s is not None:
            self.targets[work.tpot_s] = self.targets.get(work.tpot_s, 0) + 1
        self._changed()

    def see(self, key: str, now: float) -> None:
        """The node knows of the work from now on."""
        work = self._entries.get(key)
        if work is not None and work.seen_s is None:
            work.seen_s = now

    def done(self, key: str, now: float) -> None:
        """The computation is over; the request is still on the node."""
        self._freed_s = max(self._freed_s, now)
        self._end(key)

    def _end(self, key: str) -> None:
        work = self._working.pop(key, None)
        if work is not None:
            self.seconds = self.seconds - work.seconds if self._working else 0.0  # no rounding dust when idle
        if (work := self._recent.pop(key, None)) is not None:
            self._no_longer_recent(work)
        self._changed()

    def drop(self, key: str) -> None:
        """The request is no longer on the node. Unknown keys are no error."""
        work = self._entries.pop(key, None)
        if work is None:
            return
        if work.tpot_s is not None:
            self.targets[work.tpot_s] -= 1
            if not self.targets[work.tpot_s]:
                del self.targets[work.tpot_s]
        self._end(key)

    @property
    def tightest_s(self) -> float | None:
        """The least target of all entries."""
        return min(self.targets) if self.targets else None

    def reported(self, now: float, lag_s: float, named: Sequence[str] = ()) -> None:
        """A report arrived: what it names is in it, and what the node knew `lag_s` ago."""
        limit = now - lag_s
        known = dict.fromkeys(key for key in named if key in self._recent)
        known |= dict.fromkeys(
            key for key, work in self._recent.items() if work.seen_s is not None and work.seen_s <= limit
        )
        for key in known:
            self._no_longer_recent(self._recent.pop(key))
        if known:
            self._changed()

    def _no_longer_recent(self, work: Work) -> None:
        self.recent_tokens -= work.tokens
        self.recent_blocks -= work.blocks
        self.recent_seconds = max(0.0, self.recent_seconds - work.seconds) if self._recent else 0.0

    def check(self) -> None:
        assert self._working.keys() <= self._entries.keys()
        assert self._recent.keys() <= self._entries.keys()
        assert abs(self.seconds - sum(w.seconds for w in self._working.values())) <= 1e-6 * (1 + self.seconds)
        assert sum(self.targets.values()) == sum(w.tpot_s is not None for w in self._entries.values())
        assert self.recent_tokens == sum(w.tokens for w in self._recent.values())
        assert self.recent_blocks == sum(w.blocks for w in self._recent.values())
