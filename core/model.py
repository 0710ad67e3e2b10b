"""What every part must know of the model: limits, and the fingerprint that decides who may work together."""

from __future__ import annotations

from dataclasses import asdict, dataclass

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Facts two nodes must share before they may hand KV to each other: those that decide which tokens come
    out. All strings; compared item by item.

    weights: digest of names, shapes and contents of all parameters. tokenizer: digest of the vocabulary.
    geometry: what a KV vector means ("layers=30 kv_heads=3 head_dim=64 rope=..."). quantization: how matrices
    are held and multiplied, the word of the configuration after it met the checkpoint. dtype: of what is not
    quantised. kernels: the backend that computes and its version, since each rounds in its own way. Block
    size, pool size and KV dtype are not here: the hand-off converts those or refuses by `kv_transfer.layout`.
    """

    protocol: str
    architecture: str
    weights: str
    tokenizer: str
    geometry: str
    quantization: str
    dtype: str
    kernels: str

    def differing(self, other: Fingerprint) -> list[str]:
        """Human-readable items that differ, empty when the two fit together."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{item} ({mine[item]} against {theirs[item]})" for item in mine if mine[item] != theirs[item]
        ]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the edge needs to validate and tokenize for a model. max_model_len: prompt and output, tokens."""

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    fingerprint: Fingerprint
