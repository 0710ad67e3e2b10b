"""What a waiting prompt is promised from another node's prefix cache, and for how long it waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.errors import BatonError, NotFound
from baton.core.sequence import Sequence
from baton.kv_transfer.handoff import Loan


@dataclass(slots=True, eq=False)
class Fetch:
    """KV of a prompt's first `tokens` tokens that another node was asked for.

    lender: the name of that node's link. patience_s: so long it is waited for once the prompt could have
    begun; began_s: since when that is so.
    """

    lender: str
    tokens: int
    patience_s: float
    began_s: float | None = None

    def holds(self, now: float) -> bool:
        """Whether the prompt, whose turn it is, waits for it still."""
        if self.began_s is None:
            self.began_s = now
        return now < self.began_s + self.patience_s

    @property
    def due_s(self) -> float | None:
        """When the patience ends; None: the prompt has not had its turn yet."""
        return None if self.began_s is None else self.began_s + self.patience_s

    def fault(self, link: str, loan: Loan, seq: Sequence, block_size: int) -> BatonError | None:
        """What is wrong with a loan that is offered for this; the sequence knows its keys that far."""
        if link != self.lender:
            return NotFound(f"nothing was asked of {link}")
        blocks, rest = divmod(loan.tokens, block_size)
        if rest or not 0 < loan.tokens <= min(self.tokens, len(seq.keys) * block_size):
            return NotFound(f"{loan.tokens} tokens are offered, up to {self.tokens} were asked for")
        if seq.keys[blocks - 1] != loan.last_key:
            return NotFound("what is offered is another prompt's")
        return None
