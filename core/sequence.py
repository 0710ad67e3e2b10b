"""One request's life on one node: what it holds and how far it is. Mutable; owned by one scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from baton.core.kvcache import KvCache
from baton.core.phase import Move, Phase, next_phase
from baton.core.prefix import block_key, root_key
from baton.core.request import FinishReason, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on a node.

    token_ids: prompt and output so far. computed: how many of them have their KV in `blocks`, valid for
    positions [0, computed). blocks: array("q"), which a step copies as it is. keys: prefix keys of the full
    blocks among the first `computed` tokens that are known so far. cached: tokens whose KV was found here
    when the request started (counted once). key: its identity on a node; a retried request is another one.
    """

    request: Request
    phase: Phase
    arrived_s: float
    deadline_s: float | None = None  # on this node's clock
    token_ids: list[int] = field(default_factory=list)
    blocks: array[int] = field(default_factory=lambda: array("q"))
    keys: list[bytes] = field(default_factory=list)
    published: int = 0  # leading blocks that were offered to the prefix index
    computed: int = 0
    cached: int = 0
    preemptions: int = 0
    started_s: float | None = None
    finish: FinishReason | None = None
    key: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.request.id, self.request.attempt
        if not self.token_ids:
            self.token_ids = list(self.request.token_ids)

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def output_len(self) -> int:
        """Output tokens so far, those of earlier attempts included."""
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def remaining(self) -> int:
        """Tokens whose KV is still to be computed. 1 in plain decode; the last token is always uncomputed."""
        return len(self.token_ids) - self.computed

    def move(self, move: Move) -> None:
        self.phase = next_phase(self.phase, move)

    def extend_keys(self, block_size: int, upto_tokens: int, revision: str) -> None:
        """Continue the prefix chain over the full blocks of the first `upto_tokens` tokens."""
        while (len(self.keys) + 1) * block_size <= upto_tokens:
            start = len(self.keys) * block_size
            parent = self.keys[-1] if self.keys else root_key(salt=self.request.salt, revision=revision)
            self.keys.append(block_key(parent, self.token_ids[start : start + block_size]))

    def publish(self, kv: KvCache, revision: str) -> None:
        """Offer every full computed block to the prefix index, once."""
        full = self.computed // kv.block_size
        if full <= self.published:
            return
        self.extend_keys(kv.block_size, self.computed, revision)
        for i in range(self.published, full):
            kv.publish(self.keys[i], self.blocks[i])
        self.published = full

    def join(self, kv: KvCache, revision: str) -> None:
        """As `publish`, and blocks whose content was here already are given back for those that hold it: so
        sequences that came at the same time share memory, too. Nothing may be reading or writing them."""
        self.extend_keys(kv.block_size, self.computed, revision)
        full = self.computed // kv.block_size
        for i in range(full):  # also those that were offered before, and not taken
            self.blocks[i] = kv.unify(self.keys[i], self.blocks[i])
        self.published = max(self.published, full)

    def drop_kv(self, kv: KvCache) -> None:
        """Give back all blocks; the sequence must be computed again from its tokens."""
        kv.release(self.blocks)
        self.blocks = array("q")
        self.computed = 0
        self.published = 0


def finish_of(sequence: Sequence, token_id: int, max_model_len: int) -> FinishReason | None:
    """Whether `token_id`, already appended, ends the sequence. Stop before length, as OpenAI reports it."""
    request = sequence.request
    sampling = request.sampling
    if token_id in sampling.stop_token_ids:
        return FinishReason.STOP
    if token_id in request.eos_token_ids and not sampling.ignore_eos:
        return FinishReason.STOP
    if sequence.output_len >= request.output_limit(max_model_len):
        return FinishReason.LENGTH
    return None
