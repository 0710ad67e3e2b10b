"""From an EngineConfig to a model that is ready to run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from baton.core.errors import InvalidArgument
from baton.core.model import PROTOCOL_VERSION, Fingerprint, ModelInfo
from baton.engine.config import DecoderConfig, EngineConfig
from baton.engine.kv_pool import KvPool, KvShape
from baton.engine.models.base import DecoderModel
from baton.engine.models.decoder import Decoder
from baton.engine.models.decoder_load import load_decoder
from baton.engine.models.llama import LlamaModel
from baton.engine.torch_runner import TorchRunner
from baton.engine.weights.gguf import GgufFile
from baton.engine.weights.hf_config import decoder_config, eos_token_ids, read_config
from baton.engine.weights.locate import locate
from baton.engine.weights.quantized_folder import open_folder
from baton.engine.weights.source import WeightSource
from baton.engine.weights.vocabulary import tokenizer_digest
from baton.kernels import native
from baton.kernels.backend import Ops, Sampling, choose, rounding

log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, and the facts that composing a node takes.

    path: the .gguf file or the folder, which also holds the tokenizer. backend: the name of the kernels that
    run. weights_bytes: in memory, each once. max_positions: the model's own limit, tokens. quantization,
    weights_digest, tokenizer_digest, geometry: see `Fingerprint`. sampling: see `Ops`.
    """

    config: EngineConfig
    path: Path
    model: DecoderModel
    backend: str
    weights_bytes: int
    architecture: str
    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    weights_digest: str
    tokenizer_digest: str
    geometry: str
    quantization: str
    sampling: Sampling | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            protocol=str(PROTOCOL_VERSION),
            architecture=self.architecture,
            weights=self.weights_digest,
            tokenizer=self.tokenizer_digest,
            geometry=self.geometry,
            quantization=self.quantization,
            dtype=self.config.dense_dtype,
            kernels=rounding(self.backend),
        )

    def kv_shape(self, num_blocks: int) -> KvShape:
        return KvShape(
            num_blocks,
            self.layers,
            self.config.block_size,
            self.kv_heads,
            self.head_dim,
            self.config.kv_torch_dtype,
        )

    @property
    def kv_token_bytes(self) -> int:
        """KV of one token over all layers."""
        return self.kv_shape(1).token_bytes

    def max_model_len(self, num_blocks: int) -> int:
        """Tokens of prompt and output that one request may have: the least of the model's limit, the
        config's, and what a pool of so many blocks (one of them the null block) can hold."""
        room = (num_blocks - 1) * self.config.block_size
        wanted = min(self.max_positions, self.config.max_model_len or self.max_positions)
        if room < wanted:
            log.warning("a pool of %d blocks limits a request to %d tokens, not %d", num_blocks, room, wanted)
        return min(wanted, room)

    def info(self, num_blocks: int, name: str = "") -> ModelInfo:
        """name: what clients call the model; its MODEL string unless given."""
        return ModelInfo(
            name=name or self.config.model,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len(num_blocks),
            eos_token_ids=self.eos_token_ids,
            fingerprint=self.fingerprint,
        )

    def runner(self, num_blocks: int, memory: torch.Tensor | None = None, name: str = "") -> TorchRunner:
        """memory: where the pool lives (see `KvPool`); None: private memory of this process."""
        shape = self.kv_shape(num_blocks)
        if memory is None and self.config.torch_device.type != "cpu":
            memory = torch.zeros(shape.total_bytes, dtype=torch.uint8, device=self.config.torch_device)
        pool = KvPool(shape, memory)
        info = self.info(num_blocks, name)
        return TorchRunner(self.model, pool, info, self.config.activation_dtype, self.sampling)


def load(config: EngineConfig) -> LoadedModel:
    """Load all weights. InvalidArgument: no such model, or its files are damaged, incomplete or of an
    architecture that cannot be run, with the file and what is wrong, or a setting that does not fit this
    machine; Unavailable: the hub does not answer."""
    ops = choose(config.torch_device, config.backend)
    if config.threads:
        torch.set_num_threads(config.threads)  # loading, too, is shared out
    path = locate(config.model)
    loaded = _load_gguf(config, path, ops) if path.is_file() else _load_folder(config, path, ops)
    if config.threads and loaded.backend == "native":
        native.configure(config.threads, config.cpus or None)
        torch.set_num_threads(1)  # its threads would get in the way of ours
    megabytes = loaded.weights_bytes / 1e6
    log.info("loaded %s: %s kernels, %.0f MB of weights", config.model, loaded.backend, megabytes)
    return loaded


def _load_gguf(config: EngineConfig, path: Path, ops: Ops) -> LoadedModel:
    file = GgufFile(path)
    return _decoder(config, path, file, _naming(path, file.config), ops)


def _load_folder(config: EngineConfig, path: Path, ops: Ops) -> LoadedModel:
    hf_config = read_config(path)
    source = open_folder(path)
    decoder = _naming(path, lambda: decoder_config(path, hf_config))
    if decoder is not None:
        return _decoder(config, path, source, decoder, ops)
    from baton.engine.models.hooked_load import load_hooked  # brings transformers' modelling code in

    _check_hooked(config, hf_config.model_type)
    model, facts = load_hooked(path, hf_config, config.torch_dtype)
    return LoadedModel(
        config=config,
        path=path,
        model=model,
        backend="torch",
        weights_bytes=facts.weights_bytes,
        architecture=hf_config.model_type,
        vocab_size=facts.vocab_size,
        layers=facts.layers,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        max_positions=facts.max_positions,
        eos_token_ids=eos_token_ids(path, hf_config),
        weights_digest=source.digest(),
        tokenizer_digest=tokenizer_digest(path),
        geometry=facts.geometry,
        quantization="none",
    )


def _check_hooked(config: EngineConfig, kind: str) -> None:
    """InvalidArgument: a setting that transformers' own modelling code cannot follow."""
    for field, asked, possible in (
        ("quantization", config.quantization, ("auto", "none")),
        ("backend", config.backend, ("auto", "torch")),
        ("device", config.torch_device.type, ("cpu",)),
    ):
        if asked not in possible:
            raise InvalidArgument(
                f"{kind} is run by transformers' own code: {' or '.join(possible)}, not {asked}", field=field
            )


def _naming(path: Path, read: Callable[[], _T]) -> _T:
    """Errors about what a file says, told with the file's name."""
    try:
        return read()
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error


def _decoder(
    config: EngineConfig, path: Path, source: WeightSource, decoder: DecoderConfig, ops: Ops
) -> LoadedModel:
    if any(not 0 <= token < decoder.vocab_size for token in decoder.eos_token_ids):
        raise InvalidArgument(
            f"{source.where} names end tokens {decoder.eos_token_ids} outside its vocabulary"
        )
    weights = load_decoder(source, decoder, config, ops)
    return LoadedModel(
        config=config,
        path=path,
        model=_model(decoder, weights, ops, config),
        backend=ops.name,
        weights_bytes=weights.nbytes,
        architecture=decoder.architecture,
        vocab_size=decoder.vocab_size,
        layers=decoder.layers,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        max_positions=decoder.max_positions,
        eos_token_ids=decoder.eos_token_ids,
        weights_digest=source.digest(),
        tokenizer_digest=tokenizer_digest(path),
        geometry=_geometry(decoder),
        quantization=_quantization(config, weights),
        sampling=ops.sampling,
    )


def _quantization(config: EngineConfig, weights: Decoder) -> str:
    """The word that was asked for, or `none` where it comes to that."""
    nothing = config.quantization == "auto" and not weights.as_stored
    return "none" if nothing else config.quantization


def _model(config: DecoderConfig, weights: Decoder, ops: Ops, engine: EngineConfig) -> DecoderModel:
    if ops.name == "native":
        from baton.engine.models.recorded import RecordedModel  # loads the compiled kernels

        return RecordedModel(config, weights)
    return LlamaModel(config, weights, ops, engine.activation_dtype)


def _geometry(decoder: DecoderConfig) -> str:
    windows = decoder.windows
    window = str(windows[0]) if len(set(windows)) == 1 else "/".join(str(w) for w in windows)
    return (
        f"layers={decoder.layers} kv_heads={decoder.kv_heads} head_dim={decoder.head_dim} "
        f"rope={decoder.rope.describe()} window={window}"
    )
