"""vLLM on the CPU, compiled. Runs in a virtual environment of its own; see peers.py."""

import json
import os
import sys
import time


class Vllm:
    def __init__(self, model: str) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype="float32",
            max_model_len=2304,
            max_num_batched_tokens=2304,
            enable_prefix_caching=False,
            seed=0,
        )

    def prefill(self, tokens: int) -> float:
        """Seconds from a prompt of so many tokens to its first token."""
        return self._generate([_prompt(tokens, 0)], 1)

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds of so many steps of so many sequences: the whole less what the first token takes."""
        prompts = [_prompt(context, row) for row in range(rows)]
        return self._generate(prompts, steps + 1) - self._generate(prompts, 1)

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> float:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True, temperature=0.0, detokenize=False)
        begun = time.perf_counter()
        done = self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        if any(len(each.outputs[0].token_ids) != new_tokens for each in done):
            raise RuntimeError("fewer tokens than asked for")
        return seconds


def _prompt(tokens: int, row: int) -> list[int]:
    return [100 + (37 * i + row) % 40_000 for i in range(tokens)]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # its log goes to stdout, and must not be taken for an answer
    os.dup2(2, 1)
    system = Vllm(sys.argv[1])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = getattr(system, asked.pop("run"))(**asked)
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":  # its engine starts processes that import this file again
    main()
