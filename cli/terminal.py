"""Where output goes: answers to standard output, all else to standard error."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

from baton.core.errors import BatonError

notes = Console(stderr=True, highlight=False, soft_wrap=True)
answers = Console(highlight=False, soft_wrap=True)

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def complain(message: str) -> None:
    """One clear line (one per problem) on standard error."""
    for line in message.splitlines() or ["failed"]:
        print(f"error: {line}", file=sys.stderr)


def told(error: BatonError) -> str:
    """What went wrong, and when to come back where that is known."""
    wait_s = error.retry_after_s
    return str(error) if wait_s is None else f"{error} (try again in {wait_s:.2g} s)"


def fail(message: str, code: int = EXIT_FAILURE) -> NoReturn:
    """`complain`, and the end."""
    complain(message)
    sys.exit(code)
