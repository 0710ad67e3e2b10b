"""What a node computes in, as far as its settings say: told before any model is loaded."""

from __future__ import annotations


def is_cpu(device: str) -> bool:
    """device: cpu, cpu:0, cuda:0, ..."""
    return device.partition(":")[0] == "cpu"


def weights_dtype(dtype: str, device: str) -> str:
    """Of weights that are not quantised. dtype: a name, or auto: float32 on a CPU, bfloat16 elsewhere."""
    if dtype != "auto":
        return dtype
    return "float32" if is_cpu(device) else "bfloat16"


def activation_dtype(dtype: str, device: str) -> str:
    """float32 on a CPU, whatever the weights are."""
    return "float32" if is_cpu(device) else weights_dtype(dtype, device)


def dense_dtype(dtype: str, quantization: str, device: str) -> str:
    """Of matrices that are not quantised; where `quantization` takes them all, of the rest. It is `dtype` of
    `core.model.Fingerprint`."""
    all_quantized = quantization not in ("auto", "none")
    return activation_dtype(dtype, device) if all_quantized else weights_dtype(dtype, device)
