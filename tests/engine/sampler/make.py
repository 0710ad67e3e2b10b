"""Rows and logits for sampler tests."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.batch import Row
from baton.core.request import SamplingParams


def row(
    sampling: SamplingParams,
    *,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
    name: str = "r",
) -> Row:
    history = [*prompt, *output]
    return Row(
        seq=(name, 0),
        token_ids=history[-1:],
        start=len(history) - 1,
        block_table=(1,),
        sample=True,
        sampling=sampling,
        history=history,
        prompt_len=len(prompt),
        eos_token_ids=tuple(eos),
    )
