"""Whatever requests, aborts and transfers do to a KvCache: no block is lost, shared by mistake, or found with
the wrong content (PFX3)."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from baton.core.blocks import NULL_BLOCK, OutOfBlocks
from baton.core.kvcache import KvCache
from baton.core.prefix import chain, root_key

BLOCK_SIZE = 4
NUM_BLOCKS = 13
LONG = tuple(range(40))
# Nested prefixes, one branch off the first, one stranger; 6 to 40 tokens.
PROMPTS = (LONG[:6], LONG[:13], LONG[:24], LONG, (*LONG[:12], *range(90, 98)), tuple(range(50, 70)))

Content = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class Holder:
    """A request of the model: which blocks it holds for which tokens, and how many are computed."""

    salt: str
    tokens: tuple[int, ...]
    blocks: list[int]
    computed: int
    found: int  # leading blocks that came from the cache

    def keys(self) -> list[bytes]:
        return list(chain(root_key(salt=self.salt), self.tokens, BLOCK_SIZE))


class KvCacheMachine(RuleBasedStateMachine):
    holders = Bundle("holders")
    quarantines = Bundle("quarantines")

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvCache(NUM_BLOCKS, BLOCK_SIZE)
        self.live: list[Holder] = []
        self.quarantined: list[list[int]] = []
        self.content: dict[int, Content] = {}  # what the block's memory holds, complete blocks only
        self.seen_by_router: set[bytes] = set()  # kept from events alone

    @rule(target=holders, tokens=st.sampled_from(PROMPTS), salt=st.sampled_from(["", "", "tenant"]))
    def start(self, tokens: tuple[int, ...], salt: str) -> Holder:
        holder = Holder(salt, tokens, [], 0, 0)
        keys = holder.keys()[: (len(tokens) - 1) // BLOCK_SIZE]  # the last token is always computed
        promised = self.kv.peek(keys)
        found = self.kv.match(keys)
        assert len(found) == promised
        for i, block in enumerate(found):
            assert self.content[block] == (salt, tokens[: (i + 1) * BLOCK_SIZE]), "another prompt's KV"
        wanted = self.kv.blocks_for(len(tokens)) - len(found)
        before = self.kv.available
        try:
            new = self.kv.allocate(wanted)
        except OutOfBlocks:
            assert wanted > before, "refused although there was room"
            assert self.kv.available == before
            self.kv.release(found)
            return holder  # holds nothing; later rules treat it as a request without blocks
        assert NULL_BLOCK not in new
        assert self.kv.take_dirty() == new, "a new block would not be cleared"
        for block in new:
            self.content.pop(block, None)
        holder.blocks, holder.found = found + new, len(found)
        holder.computed = len(found) * BLOCK_SIZE
        self.live.append(holder)
        return holder

    @rule(holder=holders, tokens=st.integers(1, 20))
    def compute(self, holder: Holder, tokens: int) -> None:
        if holder not in self.live:
            return
        before = holder.computed // BLOCK_SIZE
        holder.computed = min(holder.computed + tokens, len(holder.tokens))
        keys = holder.keys()
        for i in range(before, holder.computed // BLOCK_SIZE):
            self.content[holder.blocks[i]] = (holder.salt, holder.tokens[: (i + 1) * BLOCK_SIZE])
            self.kv.publish(keys[i], holder.blocks[i])

    @rule(holder=holders)
    def join(self, holder: Holder) -> None:
        """Its computed blocks that others have, too, become theirs."""
        if holder not in self.live:
            return
        keys = holder.keys()
        for i in range(holder.computed // BLOCK_SIZE):
            mine = holder.blocks[i]
            holder.blocks[i] = self.kv.unify(keys[i], mine)
            assert self.content[holder.blocks[i]] == self.content[mine]
            assert self.kv.match(keys[: i + 1]) == holder.blocks[: i + 1]
            self.kv.release(holder.blocks[: i + 1])

    @rule(holder=consumes(holders))
    def end(self, holder: Holder) -> None:
        """Finished or aborted, half computed or not."""
        if holder in self.live:
            self.live.remove(holder)
            self.kv.release(holder.blocks)

    @rule(target=quarantines, holder=consumes(holders))
    def abort_transfer(self, holder: Holder) -> list[int]:
        """A reservation whose writer may still write: nothing of it was computed here."""
        if holder not in self.live or holder.computed > holder.found * BLOCK_SIZE:
            self.end(holder)
            return []
        self.live.remove(holder)
        fresh = holder.blocks[holder.found :]
        self.kv.quarantine(fresh)
        self.kv.release(holder.blocks[: holder.found])
        self.quarantined.append(fresh)
        return fresh

    @rule(blocks=consumes(quarantines))
    def absolve(self, blocks: list[int]) -> None:
        if blocks in self.quarantined:
            self.quarantined.remove(blocks)
            self.kv.absolve(blocks)

    @rule()
    def router_hears(self) -> None:
        events = self.kv.drain_events()
        assert not set(events.stored) & self.seen_by_router, "told twice"
        assert set(events.removed) <= self.seen_by_router, "never told"
        self.seen_by_router = (self.seen_by_router | set(events.stored)) - set(events.removed)
        assert self.seen_by_router == set(self.kv.index.keys())

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        self.kv.check()

    @invariant()
    def references_are_owners(self) -> None:
        owners = Counter(block for holder in self.live for block in holder.blocks)
        for block in range(NUM_BLOCKS):
            assert self.kv.pool.refs(block) == owners[block]
        assert self.kv.pool.quarantined == sum(map(len, self.quarantined))

    @invariant()
    def findable_content_is_true(self) -> None:
        for key, block in self.kv.index.items():
            salt, tokens = self.content[block]
            assert key == list(chain(root_key(salt=salt), tokens, BLOCK_SIZE))[-1]

    @invariant()
    def usage_is_what_is_held(self) -> None:
        held = {block for holder in self.live for block in holder.blocks}
        held.update(block for blocks in self.quarantined for block in blocks)
        assert self.kv.usage == len(held) / (NUM_BLOCKS - 1) <= 1.0
        assert self.kv.available == NUM_BLOCKS - 1 - len(held)

    def teardown(self) -> None:
        """When all have gone, all blocks are there again."""
        for holder in self.live:
            self.kv.release(holder.blocks)
        for blocks in self.quarantined:
            self.kv.absolve(blocks)
        self.kv.check()
        assert self.kv.usage == 0.0
        assert len(set(self.kv.allocate(NUM_BLOCKS - 1))) == NUM_BLOCKS - 1


TestKvCacheMachine = KvCacheMachine.TestCase
TestKvCacheMachine.settings = settings(max_examples=60, stateful_step_count=50)
