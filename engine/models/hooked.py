"""Any other decoder-only model of transformers, its attention replaced by ours over the paged pool.

The step's tokens run as one flat sequence with explicit positions and no cache; transformers' attention
interface hands us each layer's queries, keys and values, and what it asks for (scale, window, soft cap).
Whether a model really goes through that interface, and wants nothing else, is not declared anywhere: so each
is tried at loading, against its own dense attention, and refused if the two disagree.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutputWithPast

from baton.engine.kv_pool import KvPool
from baton.engine.models.base import Ids, as_tensor
from baton.kernels.attention import AttentionParams, AttentionPlan, attention, write_kv

NAME = "baton_paged"


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What one layer's attention was called with."""

    kv_heads: int
    head_dim: int
    params: AttentionParams


@dataclass(slots=True)
class Step:
    """What the attention calls of one forward share. With no pool, calls are only noted."""

    plan: AttentionPlan | None = None
    pool: KvPool | None = None
    seen: dict[int, LayerFacts] = field(default_factory=dict)


_step: ContextVar[Step] = ContextVar("step")


class Unsupported(Exception):
    """The model asks its attention for something that the paged one does not do."""


@contextmanager
def entered(step: Step) -> Iterator[Step]:
    token = _step.set(step)
    try:
        yield step
    finally:
        _step.reset(token)


def _attention(  # noqa: PLR0913 (the interface is not ours)
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """query: [1, heads, tokens, head_dim]; key, value: [1, kv_heads, tokens, head_dim], rotated already.
    Returns [1, tokens, heads, head_dim]."""
    if value.shape != key.shape or asked.get("s_aux") is not None or attention_mask is not None:
        raise Unsupported("attention with sinks, its own mask, or values unlike keys")
    step = _step.get()
    head_dim = query.shape[-1]
    params = AttentionParams(head_dim**-0.5 if scaling is None else scaling, sliding_window, softcap)
    index = int(cast(int, module.layer_idx))
    if step.plan is None or step.pool is None:
        if index in step.seen:
            raise Unsupported(f"two attentions in layer {index}")
        step.seen[index] = LayerFacts(key.shape[1], head_dim, params)
        return torch.zeros_like(query).transpose(1, 2), None
    layer = step.pool.layer(index)
    write_kv(layer, torch.stack((key[0], value[0])).permute(2, 0, 1, 3), step.plan)
    out = attention(query[0].transpose(0, 1), layer, step.plan, params)
    return out.unsqueeze(0), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Who sees whom is in the plan."""


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)


class _Given(torch.nn.Module):
    """Stands in for a model's body when only its head is to run."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.empty(0)

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.hidden)


class HookedModel:
    """See `DecoderModel`. model: a transformers causal LM whose attention implementation is `NAME`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        body = model.base_model_prefix
        self._body = getattr(model, body)
        # The head may do more than multiply (soft caps, scales): its own code runs around a given body.
        self._given = _Given()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, body: self._given}

    @property
    def nbytes(self) -> int:
        """Of its parameters, each once."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    @torch.inference_mode()
    def forward(self, token_ids: Ids, plan: AttentionPlan, pool: KvPool, wanted: Ids) -> torch.Tensor:
        with entered(Step(plan, pool)):
            return self._hidden(as_tensor(token_ids), plan.positions)[as_tensor(wanted)]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self._given.hidden = hidden.unsqueeze(0)
        try:
            logits: torch.Tensor = self._head(input_ids=None, use_cache=False).logits[0].float()
        finally:
            self._given.hidden = torch.empty(0)
        return logits

    @torch.inference_mode()
    def probe(self) -> dict[int, LayerFacts]:
        """Which layers' attention comes to us, and how."""
        with entered(Step()) as step:
            self._hidden(torch.zeros(2, dtype=torch.int64), torch.arange(2))
        return step.seen

    def _hidden(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = self._body(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden
