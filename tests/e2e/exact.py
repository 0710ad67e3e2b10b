"""What an exact answer is: the reference's tokens and logprobs, and the right figures beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from baton.core.request import FinishReason
from baton.runtime.client.types import Completion
from tests.e2e.cluster import Deployment
from tests.models import CONTEXT_EFFECT, MARGIN, Continuation, Reference, prompt_of, write_model
from tests.tokenizers_t import VOCAB_SIZE

LOGPROB_TOLERANCE = 1e-3
QUIET: dict[str, Any] = {"metrics": {"enabled": False}, "router": {"lease_s": 30.0}}
"""Sections for deployments on the test's own loop, which a reference that is computed there may hold up."""


@dataclass(frozen=True)
class Case:
    """A prompt with its greedy continuation."""

    prompt: list[int]
    want: Continuation

    @classmethod
    def of(cls, reference: Reference, prompt: Sequence[int], new_tokens: int) -> Case:
        return cls(list(prompt), reference.greedy(prompt, new_tokens))

    def solid(self, reference: Reference, reach: int | None = None) -> bool:
        """Whether no step is a near tie, and another token `reach` (None: as many as there are) positions
        back gives other logits."""
        prompt = self.prompt
        place = 0 if reach is None else max(0, len(prompt) - reach)
        other = [*prompt[:place], (prompt[place] + 7) % VOCAB_SIZE, *prompt[place + 1 :]]
        moved = (reference.logits(prompt)[-1] - reference.logits(other)[-1]).abs().max()
        return self.want.margin > MARGIN and float(moved) > CONTEXT_EFFECT


def solid_case(
    reference: Reference, length: int, new_tokens: int, prefix: Sequence[int] = (), reach: int | None = None
) -> Case:
    """The first random prompt of that length, after `prefix`, that passes the vacuity guard. reach: how far
    back the model's windows let it see."""
    for seed in range(50):
        case = Case.of(reference, [*prefix, *prompt_of(length - len(prefix), seed)], new_tokens)
        if case.solid(reference, reach):
            return case
    raise AssertionError(f"no prompt of {length} tokens is far from a tie at every step")


def tiny(directory: Path, variant: str = "T", **overrides: Any) -> tuple[Path, Reference]:
    folder = write_model(directory / variant, variant, **overrides)
    return folder, Reference(folder)


async def exact(cluster: Deployment, case: Case, **options: Any) -> Completion:
    """Have the case answered; the answer is the reference's."""
    want = case.want
    length = len(want.token_ids)
    options = {"max_tokens": length, "temperature": 0.0, "logprobs": 0, "ignore_eos": True} | options
    got = await cluster.client.generate(case.prompt, timeout_s=50, **options)
    assert list(got.token_ids) == want.token_ids
    assert [one.token_id for one in got.logprobs] == want.token_ids
    assert [one.logprob for one in got.logprobs] == pytest.approx(want.logprobs, abs=LOGPROB_TOLERANCE)
    assert got.finish_reason is FinishReason.LENGTH
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(case.prompt), length)
    return got


async def all_exact(cluster: Deployment, cases: Sequence[Case], **options: Any) -> list[Completion]:
    """All at once."""
    return list(await asyncio.gather(*(exact(cluster, case, **options) for case in cases)))
