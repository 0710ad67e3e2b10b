"""llama.cpp through llama-cpp-python's low-level API. Runs in an environment of its own; see peers.py."""

import ctypes
import json
import os
import sys
import time

import llama_cpp as lib

CONTEXT = 32 * 256

clock = time.process_time if "PEERS_CPU_TIME" in os.environ else time.perf_counter  # see peers.py


class LlamaCpp:
    def __init__(self, model: str, threads: int) -> None:
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = CONTEXT
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = 32
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True  # one pool for all sequences, as its server does
        self.context = lib.llama_init_from_model(self.model, params)
        self.batch = lib.llama_batch_init(512, 0, 1)

    def prefill(self, tokens: int) -> float:
        """Seconds to run a prompt of so many tokens."""
        self._forget()
        begun = clock()
        for at in range(0, tokens, 512):
            end = min(tokens, at + 512)
            self._run([(100 + 37 * i % 40_000, i, 0, i == tokens - 1) for i in range(at, end)])
        return clock() - begun

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds of so many steps of so many sequences, each `context` tokens long at first."""
        self._forget()
        for row in range(rows):
            self._run([(100 + (37 * i + row) % 40_000, i, row, i == context - 1) for i in range(context)])
        begun = clock()
        for step in range(steps):
            self._run([(1000 + row, context + step, row, True) for row in range(rows)])
            for row in range(rows):
                self._best(row)
        return clock() - begun

    def _forget(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def _run(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """tokens: (id, position, sequence, whether logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if lib.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        lib.llama_synchronize(self.context)

    def _best(self, row: int) -> int:
        logits = lib.llama_get_logits_ith(self.context, row)
        return ctypes.cast(logits, ctypes.POINTER(ctypes.c_int32))[0]  # decoding waits for the logits


def main() -> None:
    system = LlamaCpp(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = getattr(system, asked.pop("run"))(**asked)
        print(json.dumps({"seconds": seconds}), flush=True)


main()
