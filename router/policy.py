"""How a pair of nodes is chosen for a request: filters, scorers, a picker, as plain callables."""

from __future__ import annotations

from typing import Protocol


class Policy(Protocol): ...
