"""The calls of one decoder step, and the buffers that they work on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton.engine.config import DecoderConfig
from baton.engine.kv_pool import KvPool
from baton.engine.models.base import Ids
from baton.engine.models.decoder import Decoder, DecoderLayer
from baton.engine.models.recorded_mlp import RecordedMlps, after_norm, compiled
from baton.kernels.attention import AttentionParams, AttentionPlan
from baton.kernels.attention import native as attention
from baton.kernels.attention.native import NativePlan
from baton.kernels.embedding import native as embedding
from baton.kernels.linear.native import NativeLinear, Norm
from baton.kernels.native import Counter
from baton.kernels.native.program import Call, Program
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.rope import Rotation, Slots
from baton.kernels.rope import native as rope


class Rows:
    """A buffer, and views of its first rows: made once each, since after a step's kernels a torch call finds
    the caches empty."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self._views: dict[int, torch.Tensor] = {}

    def upto(self, rows: int) -> torch.Tensor:
        view = self._views.get(rows)
        if view is None:
            view = self._views[rows] = self.buffer[:rows]
        return view


class Recording:
    """A decoder over one pool, for steps of up to `capacity` tokens at positions that `table` covers."""

    def __init__(
        self, config: DecoderConfig, decoder: Decoder, pool: KvPool, table: Rotation, capacity: int
    ) -> None:
        self.pool = pool
        self.capacity = capacity
        self._config = config
        self._table = table
        self._reach = len(table.cos)
        self._tokens, self._wanted = Counter(), Counter()
        self._ids, self._positions, blocks, offsets, self._places = (
            torch.zeros(capacity, dtype=torch.int64) for _ in range(5)
        )
        # The same memory, through which plain arrays fill it.
        inputs = (self._ids, self._positions, blocks, offsets, self._places)
        self._inputs = [part.numpy().data.cast("B").cast("q") for part in inputs]
        self._rotation = Rotation(*(torch.empty(capacity, 1, config.head_dim) for _ in range(2)))
        self._slots = Slots(blocks, offsets)
        self._plan, self._last_plan = NativePlan(), NativePlan()
        heads = config.heads + 2 * config.kv_heads
        self._qkv = torch.empty(capacity, heads, config.head_dim)
        self._hidden, self._normed, self._tail = (torch.empty(capacity, config.hidden_size) for _ in range(3))
        self.final = Rows(torch.empty(capacity, config.hidden_size))
        self._mixed, self._tail_mixed = (
            torch.empty(capacity, config.heads * config.head_dim) for _ in range(2)
        )
        self._mlps = RecordedMlps(decoder, capacity, self._normed)
        self._program = Program(self._calls(decoder))

    def fits(self, pool: KvPool, plan: AttentionPlan) -> bool:
        enough = plan.tokens <= self.capacity and longest(plan) <= self._reach
        return pool is self.pool and enough

    def run(self, token_ids: Ids, plan: AttentionPlan, wanted: Ids) -> torch.Tensor:
        """[len(wanted), hidden], normed for the head."""
        tokens, count = len(token_ids), len(wanted)
        ids, positions, blocks, offsets, places = self._inputs
        ids[:tokens] = token_ids
        positions[:tokens], blocks[:tokens], offsets[:tokens] = plan.places
        places[:count] = wanted
        self._tokens.value, self._wanted.value = tokens, count
        self._plan.update(plan)
        self._last_plan.update(plan, wanted)
        self._program()
        return self.final.upto(count)

    def _calls(self, decoder: Decoder) -> Iterator[Call]:
        eps = self._config.norm_eps
        tokens, wanted = self._tokens, self._wanted
        hidden, tail = self._hidden, self._tail
        yield compiled(decoder.embedding).rows_call(self._ids, hidden, tokens)
        for table, looked_up in zip(self._table, self._rotation, strict=True):
            yield embedding.call(self._positions, table.flatten(1), looked_up.flatten(1), tokens)
        last = len(decoder.layers) - 1
        for index, layer in enumerate(decoder.layers):
            yield from self._attend(index, layer, self._last_plan if index == last else self._plan)
            mixed, rows = self._mixed, tokens
            if index == last:
                # Nothing but the wanted tokens' states is read after the last layer's KV is written.
                yield embedding.call(self._places, hidden, tail, wanted)
                yield embedding.call(self._places, self._mixed, self._tail_mixed, wanted)
                hidden, mixed, rows = tail, self._tail_mixed, wanted
            yield compiled(layer.out).call(mixed, hidden, rows, residual=True)
            yield from self._mlps.calls(layer.mlp, Norm(layer.mlp_norm, eps), hidden, rows)
        yield rms_norm.call(hidden, decoder.norm, eps, self.final.buffer, wanted)

    def _attend(self, index: int, layer: DecoderLayer, plan: NativePlan) -> Iterator[Call]:
        config, kv_layer, qkv = self._config, self.pool.layer(index), self._qkv
        norm, tokens = Norm(layer.attn_norm, config.norm_eps), self._tokens
        yield from after_norm(compiled(layer.qkv), self._hidden, norm, self._normed, qkv.flatten(1), tokens)
        yield rope.call(qkv, self._rotation, kv_layer, self._slots, self._tokens, layer.qk_norm)
        params = AttentionParams(config.scale, config.windows[index])
        mixed = self._mixed.view(self.capacity, config.heads, config.head_dim)
        yield attention.call(qkv[:, : config.heads], kv_layer, plan, params, mixed)


def longest(plan: AttentionPlan) -> int:
    """Positions that the step reaches."""
    return max(span.context for span in plan.spans)


class HeadRecording:
    """The product of what `source` holds with the head, for up to `capacity` rows."""

    def __init__(self, head: NativeLinear, source: Rows, capacity: int) -> None:
        self.capacity = capacity
        self.source = source
        self._rows = Counter()
        self._logits = Rows(torch.empty(capacity, head.out_features))
        self._program = Program([head.call(source.buffer[:capacity], self._logits.buffer, self._rows)])

    def fits(self, source: Rows, rows: int) -> bool:
        return source is self.source and rows <= self.capacity

    def run(self, rows: int) -> torch.Tensor:
        """[rows, vocab]: of the source's first rows."""
        self._rows.value = rows
        self._program()
        return self._logits.upto(rows)
