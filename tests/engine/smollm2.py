"""SmolLM2's GGUF as a transformers model: dequantised here, by a path of its own."""

from __future__ import annotations

import gguf
import torch
import transformers

from baton.engine.weights.locate import locate

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


def smollm2() -> torch.nn.Module:
    """LlamaForCausalLM in fp32 with the demo file's weights."""
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    config.dtype = torch.float32
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    # Materialised without the seconds that random initialisation takes; every parameter is assigned below.
    state = dict(_parameter(tensor) for tensor in gguf.GGUFReader(locate("demo")).tensors)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    return model.eval()


def _parameter(tensor: gguf.ReaderTensor) -> tuple[str, torch.Tensor]:
    values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
    *layer, stem, kind = tensor.name.split(".")
    heads = {"attn_q": 9, "attn_k": 3}.get(stem)
    if heads:
        # Stored as (0, 1), (2, 3), ... within a head; wanted: even ones first.
        rows = values.view(heads, 64, -1)
        values = torch.cat((rows[:, 0::2], rows[:, 1::2]), 1).reshape(values.shape)
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return f"{prefix}{_NAMES[stem]}.{kind}", values
