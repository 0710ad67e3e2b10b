"""What one engine step runs, and what comes back. The only values between schedulers and runners."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from baton.core.request import SamplingParams
from baton.core.value import value


class Row(NamedTuple):
    """A run of consecutive tokens of one sequence.

    token_ids: the tokens to run, at positions start..start+len-1. block_table: block ids by position; must
    cover the last position. KV of all positions < start is in those blocks already. sample: choose the
    token that follows the last one. history: the whole sequence (prompt and output) up to and including
    this row's last token; prompt_len splits it. The output position that is sampled is
    len(history) - prompt_len. When `sampling.prompt_logprobs` is set, positions of this row give logprobs of
    the prompt tokens that follow them; history then holds the whole prompt, since the last position is
    followed by a token that is not in the row.
    """

    seq: tuple[str, int]
    token_ids: Seq[int]
    start: int
    block_table: Seq[int]
    sample: bool
    sampling: SamplingParams
    history: Seq[int]
    prompt_len: int
    eos_token_ids: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def context(self) -> int:
        """Tokens in the KV cache after this row ran."""
        return self.start + len(self.token_ids)


@value
class SharedPrefix:
    """Blocks that two rows or more have in common: the entries [start_block, end_block) of their block tables
    are the same ids. rows: indices in the batch, ascending. All of it lies before the first query of each."""

    rows: tuple[int, ...]
    start_block: int
    end_block: int


@value
class Batch:
    """Rows of one step, at most one per sequence. clear: blocks to zero before anything else is done.

    shared: what attention had better read once for several rows (see `cascade`); leaving it out changes no
    result. The parts of one row follow one another without gaps from block 0, and a part comes before those
    that continue it.
    """

    rows: tuple[Row, ...]
    clear: tuple[int, ...] = ()
    shared: tuple[SharedPrefix, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(row.length for row in self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)


@value
class TokenLogprobs:
    """Natural-log probabilities under the model's own distribution (before temperature and edits).

    logprob: the token's own. top: (token id, logprob) of the most likely tokens, best first, as many as
    were asked for. All numbers are finite: -inf is given as -9999.0 (LOGPROB_FLOOR).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


LOGPROB_FLOOR = -9999.0


@value
class RowOutput:
    """token_id: None when the row did not sample. prompt_logprobs: one per prompt token whose predecessor
    was in this row (so the first prompt token never has one)."""

    seq: tuple[str, int]
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@value
class StepOutput:
    """One RowOutput per row, in the batch's order. duration_s: of the whole step; forward_s: of the
    model's forward alone (embedding to logits)."""

    rows: tuple[RowOutput, ...]
    duration_s: float = 0.0
    forward_s: float = 0.0
    tokens: int = 0
    context_tokens: int = 0
