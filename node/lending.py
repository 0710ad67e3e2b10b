"""What other nodes ask of this one's prefix cache: from their call to a hand-off. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from baton.core.errors import Unavailable
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
    """Keys that a node named, and whom to tell how many of its tokens are to come."""

    key: Key
    target: Target
    keys: tuple[bytes, ...]
    tokens: asyncio.Future[int]


class Lending:
    """post: to the engine. The hand-off begins as soon as the engine holds the blocks, whether or not the
    call that asked for it is still there: whoever wants them no longer refuses them."""

    def __init__(self, exporter: Exporter, post: Callable[[cmd.Command], None], block_size: int) -> None:
        self._exporter = exporter
        self._post = post
        self._block_size = block_size
        self._asked: dict[Key, Asked] = {}

    async def lend(self, key: Key, target: Target, keys: tuple[bytes, ...]) -> int:
        """Tokens that will be sent to `target`; BatonError: none, and why."""
        name = loan_key(target, key)
        if name in self._asked:
            raise Unavailable("it was asked for already")
        asked = self._asked[name] = Asked(key, target, keys, asyncio.get_running_loop().create_future())
        self._post(cmd.Lend(name, keys))
        return await asked.tokens

    def lent(self, out: Lent) -> None:
        """The engine's answer."""
        asked = self._asked.pop(out.key)
        tokens = len(out.blocks) * self._block_size
        if out.error is None:
            loan = Loan(asked.key, tokens, asked.keys[len(out.blocks) - 1])
            self._exporter.lend(out.key, loan, out.blocks, asked.target)
        if asked.tokens.done():  # the call was given up
            return
        if out.error is None:
            asked.tokens.set_result(tokens)
        else:
            asked.tokens.set_exception(out.error)
