"""Where output goes: answers to standard output, all else to standard error."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

notes = Console(stderr=True, highlight=False, soft_wrap=True)
answers = Console(highlight=False, soft_wrap=True)

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def fail(message: str, code: int = EXIT_FAILURE) -> NoReturn:
    """One clear line (one per problem) on standard error, and the end."""
    for line in message.splitlines() or ["failed"]:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)
