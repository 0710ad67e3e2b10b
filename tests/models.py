"""Model T and its relatives: tiny models whose output depends on the whole context, and their reference.

    folder = write_model(tmp_path / "t", "T", seed=0)          # a Hugging Face folder
    folder, reference = solid_model(tmp_path, "T", prompts, new_tokens=8)   # with the vacuity guard
    reference.greedy(prompt, 8).token_ids

A random model with the usual small weights repeats one token whatever its cache holds, and so hides every
KV bug: hence the large attention weights, and the guard.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.tokenizers_t import BOS_ID, EOS_ID, VOCAB_SIZE, write_tokenizer

transformers.utils.logging.disable_progress_bar()

MARGIN = 1e-3  # two best logits at every compared step
CONTEXT_EFFECT = 0.05  # of another first prompt token on the next token's logits

_T: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": None,
}

# name -> (transformers config class, changes to Model T)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "T": ("LlamaConfig", {}),
    "T8": ("LlamaConfig", {"num_attention_heads": 8}),
    "tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "hd24": ("LlamaConfig", {"head_dim": 24}),
    "bias": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "qwen2": ("Qwen2Config", {"head_dim": None, "use_sliding_window": False}),
    "qwen2-window": (
        "Qwen2Config",
        {"head_dim": None, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3Config", {}),
    "qwen3-alternate": (
        "Qwen3Config",
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "mixtral": (
        "MixtralConfig",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "sliding_window": None},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe-step": (
        "Qwen3MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [],
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
        },
    ),
    "gemma2": (
        "Gemma2Config",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 20.0,
            "final_logit_softcapping": 30.0,
            "attn_implementation": "eager",
        },
    ),
    "gpt_neox": (
        "GPTNeoXConfig",
        {
            "num_attention_heads": 6,
            "num_key_value_heads": None,
            "head_dim": None,
            "use_parallel_residual": True,
        },
    ),
    "phi": ("PhiConfig", {"num_key_value_heads": 2, "head_dim": None}),
    "stablelm": ("StableLmConfig", {"head_dim": None}),
    "olmo2": ("Olmo2Config", {"head_dim": None}),
}


def config_of(variant: str, **overrides: Any) -> transformers.PretrainedConfig:
    cls, changes = VARIANTS[variant]
    fields = {key: value for key, value in {**_T, **changes, **overrides}.items() if value is not None}
    return getattr(transformers, cls)(**fields)


def write_model(directory: Path, variant: str = "T", seed: int = 0, **overrides: Any) -> Path:
    """A Hugging Face folder (config, safetensors, tokenizer, generation config), a function of the seed."""
    config = config_of(variant, **overrides)
    config.dtype = torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        _randomize(model, torch.Generator().manual_seed(seed))
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    generation = {"bos_token_id": BOS_ID, "eos_token_id": [EOS_ID, BOS_ID]}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def _randomize(model: torch.nn.Module, noise: torch.Generator) -> None:
    for name, parameter in sorted(model.named_parameters()):
        draw = torch.randn(parameter.shape, generator=noise)
        if parameter.dim() == 1:
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.data = centre + 0.1 * draw
        elif "embed" in name or "lm_head" in name:
            parameter.data = 0.3 * draw
        elif "attn" in name or "attention" in name:
            parameter.data = 0.4 * draw
        else:
            parameter.data = 0.15 * draw


@dataclass(frozen=True)
class Continuation:
    """Greedy tokens, each one's logprob, and the smallest distance between the two best logits."""

    token_ids: list[int]
    logprobs: list[float]
    margin: float


class Reference:
    """Dense fp32 forward over the whole sequence at every step: no cache, no paging, no batch."""

    def __init__(self, model: Path | torch.nn.Module) -> None:
        if isinstance(model, Path):
            model = transformers.AutoModelForCausalLM.from_pretrained(
                model, dtype=torch.float32, attn_implementation="eager"
            )
        self.model = model.eval()
        self._known: dict[tuple[int, ...], Continuation] = {}

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab]"""
        return self.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab]"""
        return self.logits(token_ids).log_softmax(-1)

    def greedy(self, prompt: Sequence[int], new_tokens: int, eos: Sequence[int] = ()) -> Continuation:
        """Up to `new_tokens` tokens; one of `eos` is the last one. Asked again, the answer is remembered."""
        key = (*prompt, -1, new_tokens, *eos)
        if key not in self._known:
            self._known[key] = self._greedy(prompt, new_tokens, eos)
        return self._known[key]

    def _greedy(self, prompt: Sequence[int], new_tokens: int, eos: Sequence[int]) -> Continuation:
        ids, logprobs, margin = list(prompt), [], float("inf")
        for _ in range(new_tokens):
            row = self.logits(ids)[-1].log_softmax(-1)
            best = row.topk(2).values
            margin = min(margin, float(best[0] - best[1]))
            ids.append(int(row.argmax()))
            logprobs.append(float(best[0]))
            if ids[-1] in eos:
                break
        return Continuation(ids[len(prompt) :], logprobs, margin)

    def context_effect(self, prompt: Sequence[int]) -> float:
        """How much another first token changes the logits after the prompt (largest of the vocabulary)."""
        other = [(prompt[0] + 7) % VOCAB_SIZE, *prompt[1:]]
        return float((self.logits(prompt)[-1] - self.logits(other)[-1]).abs().max())

    def solid(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> bool:
        """The vacuity guard: the context matters, and no step is a near tie."""
        return all(self.context_effect(prompt) > CONTEXT_EFFECT for prompt in prompts) and all(
            self.greedy(prompt, new_tokens).margin > MARGIN for prompt in prompts
        )


def solid_model(
    directory: Path, variant: str, prompts: Sequence[Sequence[int]], new_tokens: int, **overrides: Any
) -> tuple[Path, Reference]:
    """The first seed's model that passes the vacuity guard for these prompts, and its reference."""
    for seed in range(50):
        folder = write_model(directory / f"{variant}-{seed}", variant, seed, **overrides)
        reference = Reference(folder)
        if reference.solid(prompts, new_tokens):
            return folder, reference
    raise AssertionError(f"no seed gives a {variant} whose output depends on its context")


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random token ids, no specials."""
    draw = torch.randint(
        3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(1000 * length + seed)
    )
    return draw.tolist()
