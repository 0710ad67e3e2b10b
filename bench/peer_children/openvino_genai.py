"""OpenVINO GenAI's continuous batching. Runs in a virtual environment of its own; see peers.py."""

import json
import os
import sys
import time

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

clock = time.process_time if "PEERS_CPU_TIME" in os.environ else time.perf_counter  # see peers.py


class OpenVino:
    def __init__(self, model: str, threads: int, group: str) -> None:
        """group: inputs whose rounded activations share a scale; 0: they are not rounded."""
        scheduler = SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.max_num_batched_tokens = 4096
        scheduler.enable_prefix_caching = False
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
        }
        self.pipeline = ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def prefill(self, tokens: int) -> float:
        """Seconds from a prompt of so many tokens to its first token."""
        return self._generate([_prompt(tokens, 0)], 1)

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds of so many steps of so many sequences: the whole less what the first token takes."""
        prompts = [_prompt(context, row) for row in range(rows)]
        return self._generate(prompts, steps + 1) - self._generate(prompts, 1)

    def _generate(self, prompts: list[np.ndarray], new_tokens: int) -> float:
        config = GenerationConfig(max_new_tokens=new_tokens, min_new_tokens=new_tokens, ignore_eos=True)
        begun = clock()
        done = self.pipeline.generate(
            [openvino.Tensor(prompt) for prompt in prompts], [config] * len(prompts)
        )
        seconds = clock() - begun
        for each in done:
            made = len(each.m_generation_ids[0])
            if made != new_tokens:
                raise RuntimeError(f"{made} tokens instead of {new_tokens}")
        return seconds


def _prompt(tokens: int, row: int) -> np.ndarray:
    return np.array([[100 + (37 * i + row) % 40_000 for i in range(tokens)]], dtype=np.int64)


def main() -> None:
    system = OpenVino(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = getattr(system, asked.pop("run"))(**asked)
        print(json.dumps({"seconds": seconds}), flush=True)


main()
