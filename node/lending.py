"""What other nodes ask of this one's prefix cache: from their call to a hand-off. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from baton.core.errors import BatonError, Unavailable
from baton.core.node_effects import Key
from baton.kv_transfer.handoff import Loan
from baton.node import commands as cmd
from baton.node.core import Lent
from baton.prefill_node.exporter import Exporter
from baton.prefill_node.link import Target


def loan_key(target: Target, key: Key) -> Key:
    """What a loan is called here: no request has such a name, and no other node's loan."""
    return f"loan {target.name} {key[0]}", key[1]


@dataclass(slots=True)
class Asked:
    """Keys that a node named, and whom to tell how many of their tokens it has got. sent: they are there."""

    key: Key
    target: Target
    keys: tuple[bytes, ...]
    tokens: asyncio.Future[int]
    sent: int = 0


class Lending:
    """post: to the engine. The hand-off begins as soon as the engine holds the blocks, whether or not the
    call that asked for it is still there: whoever wants them no longer refuses them."""

    def __init__(self, exporter: Exporter, post: Callable[[cmd.Command], None], block_size: int) -> None:
        self._exporter = exporter
        self._post = post
        self._block_size = block_size
        self._asked: dict[Key, Asked] = {}

    async def lend(self, key: Key, target: Target, keys: tuple[bytes, ...]) -> int:
        """Tokens that `target` has now; BatonError: none, and why."""
        name = loan_key(target, key)
        if name in self._asked:
            raise Unavailable("it was asked for already")
        asked = self._asked[name] = Asked(key, target, keys, asyncio.get_running_loop().create_future())
        self._post(cmd.Lend(name, keys))
        return await asked.tokens

    def lent(self, out: Lent) -> None:
        """The engine's answer."""
        if out.error is not None:
            self._over(out.key, out.error)
            return
        asked = self._asked[out.key]
        loan = Loan(asked.key, len(out.blocks) * self._block_size, asked.keys[len(out.blocks) - 1])
        self._exporter.lend(out.key, loan, out.blocks, asked.target)

    def sent(self, key: Key, tokens: int) -> None:
        """The other node has them. `ended` follows."""
        self._asked[key].sent = tokens

    def ended(self, key: Key) -> None:
        """A hand-off is over; of a loan or, then that is no matter, of a request."""
        if key in self._asked:
            self._over(key, Unavailable("the hand-off of it ended before its commit"))

    def _over(self, key: Key, error: BatonError) -> None:
        """error: why nothing was sent, if nothing was."""
        asked = self._asked.pop(key)
        if asked.tokens.done():  # the call was given up
            return
        if asked.sent:
            asked.tokens.set_result(asked.sent)
        else:
            asked.tokens.set_exception(error)
