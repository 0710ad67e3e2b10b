"""What a node computes in, by its settings."""

import pytest

from baton.core.arithmetic import activation_dtype, dense_dtype, weights_dtype


@pytest.mark.parametrize(
    ("dtype", "device", "weights", "activations"),
    [
        ("auto", "cpu", "float32", "float32"),
        ("auto", "cpu:0", "float32", "float32"),
        ("auto", "cuda:1", "bfloat16", "bfloat16"),
        ("bfloat16", "cpu", "bfloat16", "float32"),
        ("float16", "cuda", "float16", "float16"),
        ("float32", "cuda:0", "float32", "float32"),
    ],
)
def test_activations_are_wide_on_a_cpu(dtype: str, device: str, weights: str, activations: str) -> None:
    assert (weights_dtype(dtype, device), activation_dtype(dtype, device)) == (weights, activations)
    for word in ("auto", "none"):
        assert dense_dtype(dtype, word, device) == weights
    for word in ("int8", "fp8-w8a8"):
        assert dense_dtype(dtype, word, device) == activations, "only what is no matrix is left"
