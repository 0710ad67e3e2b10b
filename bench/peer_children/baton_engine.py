"""Baton's own engine under the same questions as its peers; see peers.py."""

from __future__ import annotations

import json
import os
import sys
import time

from baton.core.batch import Batch, Row
from baton.core.request import SamplingParams
from baton.engine.config import EngineConfig
from baton.engine.loader import load

_GREEDY = SamplingParams(temperature=0.0)
_BLOCK_SIZE = 16
_CHUNK_TOKENS = 512

clock = time.process_time if "PEERS_CPU_TIME" in os.environ else time.perf_counter  # see peers.py


class Baton:
    def __init__(self, model: str, threads: int, quantization: str, kv_dtype: str) -> None:
        loaded = load(EngineConfig(model, threads=threads, quantization=quantization, kv_dtype=kv_dtype))
        self.runner = loaded.runner(32 * 16 + 1)

    def prefill(self, tokens: int) -> float:
        """Seconds to run a prompt of so many tokens, in chunks, to its first token."""
        ids = _prompt(tokens, 0)
        begun = clock()
        for at in range(0, tokens, _CHUNK_TOKENS):
            self.runner.run(Batch((_row(0, ids[: at + _CHUNK_TOKENS], at, tokens),)))
        return clock() - begun

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds of so many steps of so many sequences, each `context` tokens long at first."""
        texts = [_prompt(context, row) for row in range(rows)]
        for row, ids in enumerate(texts):
            self._extend([(row, ids, 0)], texts, context)
        begun = clock()
        for step in range(steps):
            self._extend([(row, ids, context + step) for row, ids in enumerate(texts)], texts, context)
        return clock() - begun

    def _extend(self, work: list[tuple[int, list[int], int]], texts: list[list[int]], context: int) -> None:
        done = self.runner.run(Batch(tuple(_row(row, ids, at, context) for row, ids, at in work)))
        for (row, _, _), out in zip(work, done.rows, strict=True):
            assert out.token_id is not None
            texts[row].append(out.token_id)


def _row(index: int, ids: list[int], start: int, prompt_len: int) -> Row:
    per_row = 16 if prompt_len <= 16 * _BLOCK_SIZE - 64 else 256
    table = range(1 + index * per_row, 1 + (index + 1) * per_row)
    sample = len(ids) >= prompt_len
    return Row((str(index), 0), ids[start:], start, table, sample, _GREEDY, list(ids), prompt_len)


def _prompt(tokens: int, row: int) -> list[int]:
    return [100 + (37 * i + row) % 40_000 for i in range(tokens)]


def main() -> None:
    system = Baton(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = getattr(system, asked.pop("run"))(**asked)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
