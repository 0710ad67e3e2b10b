"""The calls of one decoder step, and the buffers that they work on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton.engine.config import DecoderConfig
from baton.engine.kv_pool import KvPool
from baton.engine.models.decoder import Decoder, DecoderLayer
from baton.engine.models.recorded_mlp import RecordedMlps, compiled
from baton.engine.rotations import Rotations
from baton.kernels.attention import AttentionParams, AttentionPlan
from baton.kernels.attention import native as attention
from baton.kernels.attention.native import NativePlan
from baton.kernels.embedding import native as embedding
from baton.kernels.linear.native import NativeLinear
from baton.kernels.native import Counter
from baton.kernels.native.program import Call, Program
from baton.kernels.rms_norm import native as rms_norm
from baton.kernels.rope import Rotation, Slots
from baton.kernels.rope import native as rope


class Recording:
    """A decoder over one pool, for steps of up to `capacity` tokens."""

    def __init__(
        self, config: DecoderConfig, decoder: Decoder, pool: KvPool, rotations: Rotations, capacity: int
    ) -> None:
        self.pool = pool
        self.capacity = capacity
        self._config = config
        self._rotations = rotations
        self._tokens, self._wanted = Counter(), Counter()
        self._ids, blocks, offsets, self._places = (
            torch.zeros(capacity, dtype=torch.int64) for _ in range(4)
        )
        self._rotation = Rotation(*(torch.empty(capacity, 1, config.head_dim) for _ in range(2)))
        self._slots = Slots(blocks, offsets)
        self._plan = NativePlan()
        heads = config.heads + 2 * config.kv_heads
        self._qkv = torch.empty(capacity, heads, config.head_dim)
        self._hidden, self._normed, self._tail, self._final = (
            torch.empty(capacity, config.hidden_size) for _ in range(4)
        )
        self._mixed, self._tail_mixed = (
            torch.empty(capacity, config.heads * config.head_dim) for _ in range(2)
        )
        self._mlps = RecordedMlps(decoder, capacity)
        self._program = Program(self._calls(decoder))

    def run(self, token_ids: torch.Tensor, plan: AttentionPlan, wanted: torch.Tensor) -> torch.Tensor:
        """[len(wanted), hidden], normed for the head."""
        tokens, count = len(token_ids), len(wanted)
        self._ids[:tokens] = token_ids
        self._rotations.into(self._rotation, plan.positions)
        self._slots.blocks[:tokens] = plan.blocks
        self._slots.offsets[:tokens] = plan.offsets
        self._places[:count] = wanted
        self._tokens.value, self._wanted.value = tokens, count
        self._plan.update(plan)
        self._program()
        return self._final[:count]

    def _calls(self, decoder: Decoder) -> Iterator[Call]:
        eps = self._config.norm_eps
        tokens, wanted = self._tokens, self._wanted
        hidden, normed, tail = self._hidden, self._normed, self._tail
        yield compiled(decoder.embedding).rows_call(self._ids, hidden, tokens)
        last = len(decoder.layers) - 1
        for index, layer in enumerate(decoder.layers):
            yield rms_norm.call(hidden, layer.attn_norm, eps, normed, tokens)
            yield from self._attend(index, layer)
            mixed, rows = self._mixed, tokens
            if index == last:
                # Nothing but the wanted tokens' states is read after the last layer's KV is written.
                yield embedding.call(self._places, hidden, tail, wanted)
                yield embedding.call(self._places, self._mixed, self._tail_mixed, wanted)
                hidden, mixed, rows = tail, self._tail_mixed, wanted
            yield compiled(layer.out).call(mixed, hidden, rows, residual=True)
            yield rms_norm.call(hidden, layer.mlp_norm, eps, normed, rows)
            yield from self._mlps.calls(layer.mlp, normed, hidden, rows)
        yield rms_norm.call(hidden, decoder.norm, eps, self._final, wanted)

    def _attend(self, index: int, layer: DecoderLayer) -> Iterator[Call]:
        config, kv_layer, qkv = self._config, self.pool.layer(index), self._qkv
        yield compiled(layer.qkv).call(self._normed, qkv.flatten(1), self._tokens)
        yield rope.call(qkv, self._rotation, kv_layer, self._slots, self._tokens, layer.qk_norm)
        params = AttentionParams(config.scale, config.windows[index])
        mixed = self._mixed.view(self.capacity, config.heads, config.head_dim)
        yield attention.call(qkv[:, : config.heads], kv_layer, self._plan, params, mixed)


class HeadRecording:
    """The product with the head, for up to `capacity` rows."""

    def __init__(self, head: NativeLinear, capacity: int) -> None:
        self.capacity = capacity
        self._rows = Counter()
        self._hidden = torch.empty(capacity, head.in_features)
        self._logits = torch.empty(capacity, head.out_features)
        self._program = Program([head.call(self._hidden, self._logits, self._rows)])

    def run(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocab]."""
        rows = len(hidden)
        self._hidden[:rows] = hidden
        self._rows.value = rows
        self._program()
        return self._logits[:rows]
