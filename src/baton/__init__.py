"""Baton: disaggregated prefill/decode serving for large language models.

with baton.Client("127.0.0.1:8000") as client:
    print(client.generate("Once upon a time", max_tokens=32).text)
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__"]  # the clients come by __getattr__

_LAZY = {"AsyncClient": "baton.runtime.client.aio", "Client": "baton.runtime.client.threads"}


def __getattr__(name: str) -> Any:
    """The clients bring gRPC with them: import it only for who uses them."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
