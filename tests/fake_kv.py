"""A KV memory and a model that are pure functions, for tests of schedulers and hand-offs.

The "KV" of position p is a digest of the tokens up to and including p, as a real one depends on all of them.
The fake model reads what it attends to and fails the test on the first wrong, stale or cleared cell. The next
token is a pure function of the whole history, so any token that is skipped, repeated or lost shows.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

from baton.core.batch import LOGPROB_FLOOR, Row, RowOutput, TokenLogprobs
from baton.core.request import FinishReason, Request

VOCAB = 97
EMPTY = 0


def digest(tokens: Sequence[int]) -> int:
    return 1 + crc32(bytes(tokens))  # ids are below 256; never EMPTY


def next_token(history: Sequence[int]) -> int:
    return crc32(b"next" + bytes(history)) % VOCAB


def reference(request: Request, max_model_len: int) -> tuple[list[int], FinishReason]:
    """All output tokens of a request (those of earlier attempts included), and why it ends."""
    history = list(request.prompt_ids)
    while True:
        token = next_token(history)
        history.append(token)
        output = history[len(request.prompt_ids) :]
        if token in request.sampling.stop_token_ids:
            return output, FinishReason.STOP
        if token in request.eos_token_ids and not request.sampling.ignore_eos:
            return output, FinishReason.STOP
        if len(output) >= min(request.max_tokens, max_model_len - len(request.prompt_ids)):
            return output, FinishReason.LENGTH


class FakeMemory:
    """One pool's cells: [block][slot]."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.cells = [[EMPTY] * block_size for _ in range(num_blocks)]

    def clear(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.cells[block] = [EMPTY] * self.block_size

    def read(self, blocks: Sequence[int], position: int) -> int:
        return self.cells[blocks[position // self.block_size]][position % self.block_size]

    def write(self, blocks: Sequence[int], position: int, value: int) -> None:
        self.cells[blocks[position // self.block_size]][position % self.block_size] = value

    def must_hold(self, blocks: Sequence[int], tokens: Sequence[int], upto: int) -> None:
        for position in range(upto):
            expected = digest(tokens[: position + 1])
            assert self.read(blocks, position) == expected, f"wrong KV at position {position}"


def run(memory: FakeMemory, rows: Iterable[Row]) -> dict[tuple[str, int], RowOutput]:
    """What a model does with a batch, and what it would choose."""
    outputs = {}
    for row in rows:
        assert list(row.token_ids) == list(row.history[row.start : row.context])
        memory.must_hold(row.block_table, row.history, row.start)
        for offset in range(row.length):
            position = row.start + offset
            assert memory.read(row.block_table, position) == EMPTY, "a cell is written twice"
            memory.write(row.block_table, position, digest(row.history[: position + 1]))
        token = next_token(row.history) if row.sample else None
        outputs[row.seq] = RowOutput(row.seq, token, prompt_logprobs=_prompt_logprobs(row))
    return outputs


def _prompt_logprobs(row: Row) -> tuple[TokenLogprobs, ...]:
    if row.sampling.prompt_logprobs is None:
        return ()
    following = range(row.start + 1, min(row.context + 1, row.prompt_len))
    return tuple(TokenLogprobs(position, LOGPROB_FLOOR) for position in following)
