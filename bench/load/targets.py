"""From what the user wrote to targets."""

from __future__ import annotations

from collections.abc import Sequence

from baton.bench.load.grpc_target import GrpcTarget
from baton.bench.load.openai_target import OpenAiTarget
from baton.bench.load.target import Options, Target
from baton.core.errors import InvalidArgument
from baton.runtime.addresses import split_address

SCHEMES = ("grpc", "http", "https")


def parse_target(text: str, options: Options) -> Target:
    """`[name=]url`; without a name the address is one. InvalidArgument: not so."""
    name, equals, url = text.partition("=")
    if not equals or "://" in name:
        name, url = "", text
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES or not rest.strip("/"):
        raise InvalidArgument(
            f"{text!r}: write grpc://host:port, http://host:port or http://host:port/v1/chat/completions, "
            "with name= before it if you like",
            field="target",
        )
    name = name or rest.rstrip("/")
    if scheme == "grpc":
        split_address(rest.rstrip("/"))
        return GrpcTarget(name, url, options)
    return OpenAiTarget(name, url, options)


def parse_targets(texts: Sequence[str], options: Options) -> list[Target]:
    """InvalidArgument, too: two of one name."""
    found = [parse_target(text, options) for text in texts]
    names = [target.name for target in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"two are called {name}: name them apart with name=url", field="target")
    return found
