"""Bearer keys: a file with one per line, of which a client must show one."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from baton.core.errors import InvalidArgument, Unauthenticated

LEAST_CHARS = 8


class ApiKeys:
    """No keys: everybody may come in."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def check(self, headers: Mapping[str, str]) -> None:
        """Unauthenticated unless the bearer token is one of the keys."""
        if not self._digests:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("give an API key: Authorization: Bearer KEY")
        shown = _digest(token.strip())
        if not any(hmac.compare_digest(shown, digest) for digest in self._digests):
            raise Unauthenticated("the API key is not valid")


def read_keys(path: str) -> ApiKeys:
    """Empty lines and those that begin with # count for nothing. InvalidArgument: no keys in it."""
    field = "router.http.api_keys_file"
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot be read: {error}", field=field) from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise InvalidArgument(f"{path} holds no key", field=field)
    if any(len(key) < LEAST_CHARS for key in keys):
        raise InvalidArgument(f"{path} holds a key of less than {LEAST_CHARS} characters", field=field)
    return ApiKeys(keys)


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogateescape")).digest()
