"""Which sequences a node generates, and who gives way when KV blocks run out. Pure; in the engine thread.

admit / adopt ──▶ ready ──slot──▶ running ──finish──▶ gone
                    ▲                │
                    └─────preempt────┘ (KV given back; computed again from the tokens, or found in the cache)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq

from baton.core.batch import Row, RowOutput
from baton.core.errors import BatonError, DeadlineExceeded, InternalError
from baton.core.flight import Ending, Flight, row_for
from baton.core.kvcache import KvCache
from baton.core.node_effects import Admit, Ended, Key, NodeEffect, TokensOut
from baton.core.phase import Move, Phase
from baton.core.request import TPOT_SHARE, FinishReason
from baton.core.sequence import Sequence, finish_of
from baton.decode_node.limits import DecodeLimits, DecodeStats
from baton.decode_node.residents import Residents

CATCH_UP = 4.0
MOST_AHEAD = 4.0  # so many times its TPOT may a request wait for a token


class DecodeScheduler:
    """Step: `schedule` -> run the rows -> `complete`. Between the two only admit, adopt, abort, fail and
    expire are called.

    reclaim: takes blocks back from prompts on the same pool (PrefillScheduler.reclaim), before a sequence
    here is preempted. revision: the model's identity in prefix keys.
    """

    def __init__(
        self, kv: KvCache, limits: DecodeLimits, revision: str, reclaim: Callable[[int], int] | None = None
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._revision = revision
        self._reclaim = reclaim or (lambda blocks: 0)
        self._residents = Residents(limits)
        self._flight = Flight()
        self._began: dict[Key, tuple[float, int]] = {}  # when decode began here, after how many tokens
        self._deadlines: dict[Key, float] = {}  # of those that have one
        self._preemptions = 0
        self._recomputed = 0

    # ---- sequences come and go ---------------------------------------------------------------------------

    def admit(self, now: float, admit: Admit, waited_s: float = 0.0) -> list[NodeEffect]:
        """A committed hand-off: its blocks, with all but the last token's KV, change owner. waited_s: for how
        long it may have waited already for a step to end."""
        seq = Sequence(admit.request, Phase.RESERVED, arrived_s=now, deadline_s=admit.deadline_s)
        seq.blocks = array("q", admit.blocks)
        seq.keys = list(admit.keys)
        seq.computed = admit.computed
        seq.cached = admit.cached_tokens
        seq.move(Move.COMMIT)
        return self.adopt(now, seq, waited_s)

    def adopt(self, now: float, sequence: Sequence, waited_s: float = 0.0) -> list[NodeEffect]:
        """A sequence prefilled on this very node (PrefillScheduler.take), KV and all."""
        if self._residents.get(sequence.key) is not None:  # a second hand-off of it: the first goes on
            sequence.drop_kv(self._kv)
            return []
        self._residents.ready[sequence.key] = sequence
        self._began[sequence.key] = (now - waited_s, sequence.output_len)
        if sequence.deadline_s is not None:
            self._deadlines[sequence.key] = sequence.deadline_s
        sequence.join(self._kv, self._revision)
        if sequence.output_len >= sequence.request.output_limit(self._limits.max_model_len):
            return [self._finish(sequence, Ending(FinishReason.LENGTH))]
        return []

    def abort(self, key: Key, *, silent: bool = False) -> list[NodeEffect]:
        """End a sequence in whatever phase it is. Unknown or ended: nothing happens. One in the batch that
        runs right now gets its Ended from `complete`."""
        return self._end(key, Ending(FinishReason.CANCELLED, silent=silent))

    def fail(self, key: Key, error: BatonError) -> list[NodeEffect]:
        """As `abort`, with an error."""
        return self._end(key, Ending(FinishReason.ERROR, error))

    def expire(self, now: float) -> list[NodeEffect]:
        """End what is past its deadline."""
        if not self._deadlines:
            return []
        late = [seq for seq in self._residents.all() if seq.deadline_s is not None and seq.deadline_s <= now]
        error = DeadlineExceeded("the deadline passed during decode")
        return [effect for seq in late for effect in self.fail(seq.key, error)]

    # ---- one step ----------------------------------------------------------------------------------------

    def schedule(self, now: float, budget_tokens: int) -> list[Row]:
        """One token for each running sequence, then pieces of what must be computed again."""
        self._flight.must_be_landed()
        self._fill_slots()
        rows: list[Row] = []
        batch, kv = self._residents.batch(), self._kv
        for seq in batch:
            if len(rows) == budget_tokens:
                break
            if seq.phase is not Phase.DECODE:  # preempted for one before it, just now
                continue
            tokens = len(seq.token_ids)
            if tokens - seq.computed != 1:
                continue
            if tokens <= len(seq.blocks) * kv.block_size or self._cover(seq):
                rows.append(row_for(seq, 1))
        left = budget_tokens - len(rows)
        for seq in self._residents.batch() if len(rows) < len(batch) else ():
            count = min(seq.remaining, self._limits.chunk_tokens, left)
            if seq.remaining > 1 and count > 0:
                rows.append(row_for(seq, count))
                left -= count
        self._flight.depart(rows)
        return rows

    def complete(self, now: float, outputs: Mapping[Key, RowOutput]) -> list[NodeEffect]:
        """Take in what the rows gave. Keys of others are ignored; a row without output counts as not run."""
        effects: list[NodeEffect] = []
        for row, ending in self._flight.land():
            seq = self._residents.running[row.seq]
            output = outputs.get(row.seq)
            if ending is not None:
                effects.append(self._finish(seq, ending))
            elif output is not None:
                effects += self._advance(seq, row, output)
        return effects

    def steady_steps(self, most: int) -> int:
        """How many steps from the one in flight on, at most `most`, would run the same sequences, a token
        each, as long as nothing comes from outside and none of them ends. They take free blocks alone: what
        is evicted is told when it happens."""
        running, kv = self._residents.running.values(), self._kv
        if self._residents.ready:  # the next step may find room for them
            return 1
        if len(self._flight) != len(running):
            return 1
        if any(len(seq.token_ids) - seq.computed != 1 for seq in running):
            return 1
        rows, size, free = len(running), kv.block_size, kv.pool.free
        if rows * (most // size + 1) <= free:
            return most
        # Each wants a block when its last one is full, and another one `size` steps later.
        room = sorted([len(seq.blocks) * size - len(seq.token_ids) for seq in running])
        return max(1, min(most, 1 + room[free % rows] + free // rows * size))

    def complete_steps(self, tokens: Seq[tuple[int, ...]]) -> list[NodeEffect]:
        """As `complete` and `schedule` in turn, over steady steps: each sequence in flight, by row, gets its
        tokens, as many as there were steps. Only the last of them may end it."""
        effects: list[NodeEffect] = []
        kv, running, size = self._kv, self._residents.running, self._kv.block_size
        for (row, ending), new in zip(self._flight.land(), tokens, strict=True):
            assert ending is None, "something came from outside"
            key = row.seq
            seq = running[key]
            have = len(seq.token_ids)
            if have + len(new) - 1 > len(seq.blocks) * size:
                seq.blocks.extend(kv.allocate(kv.blocks_for(have + len(new) - 1) - len(seq.blocks)))
            seq.token_ids += new
            seq.computed += len(new)
            if seq.computed // size > seq.published:
                seq.publish(kv, self._revision)
            effects.append(TokensOut(key, have - row.prompt_len, new))
            finish = finish_of(seq, new[-1], self._limits.max_model_len)
            if finish is not None:
                effects.append(self._finish(seq, Ending(finish)))
        return effects

    # ---- what it says of itself --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A sequence runs or waits (which does not mean that `schedule` finds room for it)."""
        return bool(self._residents.running or self._residents.ready)

    def next_wakeup(self) -> float | None:
        """When `expire` is next due."""
        return min(self._deadlines.values()) if self._deadlines else None

    def patience_s(self, now: float, rows: Iterable[Row]) -> float | None:
        """How long a step of these rows may take by the targets of their requests; None: they have none.

        One ahead of its target may wait for longer, MOST_AHEAD times at most: nobody should see a gap. One
        behind catches up over some CATCH_UP tokens: its answer may be over soon."""
        running = self._residents.running
        each = [self._patience_s(now, running[row.seq]) for row in rows]
        return min([seconds for seconds in each if seconds is not None], default=None)

    def _patience_s(self, now: float, seq: Sequence) -> float | None:
        target_s = seq.request.slo.tpot_s
        if target_s is None:
            return None
        target_s *= TPOT_SHARE
        began_s, had = self._began[seq.key]
        due_s = began_s + target_s * (seq.output_len - had + 1)
        ahead_s = due_s - now - target_s
        return min(target_s + (ahead_s if ahead_s > 0.0 else ahead_s / CATCH_UP), MOST_AHEAD * target_s)

    def headroom_blocks(self) -> int:
        """Blocks to leave free for what is here already: growth of the batch, and preempted sequences."""
        lacking = sum([self._needs(seq) for seq in self._residents.ready.values() if not seq.blocks])
        return min(self._kv.pool.usable, len(self._residents.running) + lacking)

    def stats(self) -> DecodeStats:
        running = self._residents.running.values()
        return DecodeStats(
            waiting=len(self._residents.ready),
            running=len(running),
            context_tokens=sum(seq.computed for seq in running),
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed,
        )

    def owned(self) -> Iterator[array[int]]:
        """The blocks of each sequence here: every one a reference."""
        return (seq.blocks for seq in self._residents.all())

    def check(self) -> None:
        """Raise AssertionError unless each sequence is in one place, with the phase and blocks it implies."""
        residents = self._residents
        assert not residents.running.keys() & residents.ready.keys(), "a sequence is in two places"
        assert len(residents.running) <= self._limits.max_running, "the batch is too large"
        assert all(seq.phase is Phase.DECODE for seq in residents.running.values())
        assert all(seq.phase is Phase.READY for seq in residents.ready.values())
        assert self._began.keys() == {seq.key for seq in residents.all()}
        assert self._deadlines == {
            seq.key: seq.deadline_s for seq in residents.all() if seq.deadline_s is not None
        }
        for seq in residents.all():
            assert 0 <= seq.computed < len(seq.token_ids), "the last token's KV is computed, or none is left"
            assert self._kv.blocks_for(seq.computed) <= len(seq.blocks), "computed KV has no block"
            assert len(seq.blocks) <= self._needs(seq), "a sequence holds more blocks than it can use"

    # ---- parts -------------------------------------------------------------------------------------------

    def _needs(self, seq: Sequence) -> int:
        return self._kv.blocks_for(len(seq.token_ids))

    def _fill_slots(self) -> None:
        for seq in self._residents.queue():
            free, leaver = self._residents.slot_for(seq)
            if not free:
                break
            if not seq.blocks and not self._restore(seq):
                continue  # those behind it hold their KV already: letting them run gives blocks back
            if leaver is not None:
                self._residents.pause(leaver)
            self._residents.run(seq)

    def _restore(self, seq: Sequence) -> bool:
        """Blocks for a preempted sequence, all at once, but none that the batch will want soon."""
        kv, total = self._kv, len(seq.token_ids)
        seq.extend_keys(kv.block_size, total - 1, self._revision)
        found = kv.match(seq.keys[: (total - 1) // kv.block_size])
        need = kv.blocks_for(total) - len(found)
        if need + len(self._residents.running) > kv.available:
            kv.release(found)
            return False
        seq.blocks = array("q", found + kv.allocate(need))
        seq.computed = len(found) * kv.block_size
        seq.published = len(found)
        return True

    def _cover(self, seq: Sequence) -> bool:
        """A block for the position that is computed next, whoever must give way. False: not in this step."""
        need = self._needs(seq) - len(seq.blocks)
        while need > self._kv.available:
            if self._reclaim(need - self._kv.available) > 0:
                continue
            last = self._residents.last_holder()
            if last is seq and not self._others_hold_blocks(seq):
                return False  # held by hand-offs under way: they end by themselves, or by their leases
            assert last is not None
            self._preempt(last)
            if last is seq:
                return False
        if need > 0:
            seq.blocks.extend(self._kv.allocate(need))
        return True

    def _others_hold_blocks(self, seq: Sequence) -> bool:
        return any(other.blocks for other in self._residents.all() if other is not seq)

    def _preempt(self, seq: Sequence) -> None:
        if seq.phase is Phase.DECODE:
            self._residents.pause(seq)
        seq.drop_kv(self._kv)
        seq.preemptions += 1
        self._preemptions += 1

    def _advance(self, seq: Sequence, row: Row, output: RowOutput) -> list[NodeEffect]:
        seq.computed += row.length
        seq.publish(self._kv, self._revision)
        self._recomputed += row.length - 1 if row.sample else row.length
        if not row.sample:
            return []
        if output.token_id is None:
            return [self._finish(seq, Ending(FinishReason.ERROR, InternalError("no token was sampled")))]
        seq.token_ids.append(output.token_id)
        logprobs = () if output.logprobs is None else (output.logprobs,)
        tokens = TokensOut(seq.key, seq.output_len - 1, (output.token_id,), logprobs)
        finish = finish_of(seq, output.token_id, self._limits.max_model_len)
        return [tokens] if finish is None else [tokens, self._finish(seq, Ending(finish))]

    def _end(self, key: Key, ending: Ending) -> list[NodeEffect]:
        seq = self._residents.get(key)
        if seq is None:
            return []
        if key in self._flight:
            self._flight.defer(key, ending)
            return []
        return [self._finish(seq, ending)]

    def _finish(self, seq: Sequence, ending: Ending) -> Ended:
        self._residents.remove(seq)
        del self._began[seq.key]
        self._deadlines.pop(seq.key, None)
        seq.move(Move.END)
        seq.finish = ending.reason
        seq.drop_kv(self._kv)
        return Ended(seq.key, ending.reason, seq.output_len, seq.preemptions, ending.error, ending.silent)
