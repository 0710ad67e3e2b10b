"""host:port as text, IPv6 included."""

from __future__ import annotations

from baton.core.errors import InvalidArgument

_ANY = {"0.0.0.0", "::", "*", ""}


def join_address(host: str, port: int) -> str:
    """`127.0.0.1:80`, `[::1]:80`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """The reverse of `join_address`; InvalidArgument for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"{address!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument(f"{address!r}: an IPv6 address needs brackets")
    if not host:
        raise InvalidArgument(f"{address!r} names no host")
    return host, int(port)


def reachable(host: str, advertise_host: str | None) -> str:
    """What others call a listener on `host`: the advertised name, and never the address of all interfaces."""
    if advertise_host is not None:
        return advertise_host
    return "127.0.0.1" if host in _ANY else host
