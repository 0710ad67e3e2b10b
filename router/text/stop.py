"""Find stop strings in a stream of text, holding back no more than what may still become one.

Which stop string wins depends on the text alone, never on how it was cut into pieces: the one that is
complete first; of several that end at the same character, the longest. So with "DEF" and "DEFGH" it is
always "DEF", and nothing after the completing character is ever waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from baton.core.errors import InvalidArgument

MAX_STOPS = 64
MAX_STOP_CHARS = 1024


class StopMatcher:
    """An Aho-Corasick automaton (CACM 18(6), 1975): constant work per character, however many stop
    strings."""

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """include_stop: a stop string stays in the text (so nothing needs to be held back).

        Raises InvalidArgument on field `stop`: an empty string, too many, or too long ones.
        """
        check_stops(stops)
        self._include = include_stop
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[str | None] = [None]
        self._fail = [0]
        for stop in stops:
            self._insert(stop)
        self._link()
        self._first = frozenset(self._next[0])
        self._state = 0
        self._held = ""
        self._matched = False

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is now certain, and the stop string that completed, if one did: then what followed it is
        dropped, and nothing may be pushed any more."""
        if self._matched:
            raise ValueError("pushed to after a stop string matched")
        if not self._state and self._first.isdisjoint(text):
            return text, None
        state, moves, fail, found = self._state, self._next, self._fail, self._found
        for i, char in enumerate(text):
            while state and char not in moves[state]:
                state = fail[state]
            state = moves[state].get(char, 0)
            if found[state] is not None:
                return self._match(self._held + text[: i + 1], found[state] or "")
        self._state = state
        if self._include:
            return text, None
        whole = self._held + text
        certain = len(whole) - self._depth[state]
        self._held = whole[certain:]
        return whole[:certain], None

    def flush(self) -> str:
        """What was held back: no more text comes, so it cannot become a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _match(self, text: str, stop: str) -> tuple[str, str]:
        self._held, self._matched = "", True
        return (text if self._include else text[: len(text) - len(stop)]), stop

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._found.append(None)
                self._fail.append(0)
            node = self._next[node][char]
        self._found[node] = stop

    def _link(self) -> None:
        """Breadth first: the failure of a node is the longest proper suffix of its text that is also a
        node."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                fail = self._fail[node]
                while fail and char not in self._next[fail]:
                    fail = self._fail[fail]
                self._fail[child] = self._next[fail].get(char, 0)
                if self._found[child] is None:  # else this one is the longest that ends here
                    self._found[child] = self._found[self._fail[child]]
                queue.append(child)


def check_stops(stops: Sequence[str]) -> None:
    """Raise InvalidArgument unless every stop string can be searched for."""
    if len(stops) > MAX_STOPS:
        raise InvalidArgument(f"at most {MAX_STOPS} stop strings, got {len(stops)}", field="stop")
    for i, stop in enumerate(stops):
        if not stop:
            raise InvalidArgument(f"string {i} is empty", field="stop")
        if len(stop) > MAX_STOP_CHARS:
            raise InvalidArgument(
                f"string {i} has {len(stop)} characters, the limit is {MAX_STOP_CHARS}", field="stop"
            )
