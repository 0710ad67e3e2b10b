"""What clients say in headers: names of requests, deadlines, latency targets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from baton.core.errors import InvalidArgument
from baton.proto.v1 import common_pb2 as common
from baton.runtime import checks

REQUEST_ID = "x-request-id"
TIMEOUT = "x-request-timeout"
SLO_TTFT = "x-slo-ttft-ms"  # these two as in the Gateway API inference extension
SLO_TPOT = "x-slo-tpot-ms"

MAX_TIMEOUT_S = 1e7
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""As JSON's, a little wider; `float` takes far more: 1_000, nan, digits of any script."""


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own name for the request, "" where it gives none; safe to log and to send back."""
    return checks.printable(REQUEST_ID, headers.get(REQUEST_ID, ""))


def timeout_s(headers: Mapping[str, str]) -> float | None:
    """Seconds until the client gives the request up; None: it does not say."""
    value = _number(headers, TIMEOUT)
    return None if value is None else min(value, MAX_TIMEOUT_S)


def slo(headers: Mapping[str, str]) -> common.Slo:
    ttft_ms, tpot_ms = _number(headers, SLO_TTFT), _number(headers, SLO_TPOT)
    return common.Slo(
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
    )


def _number(headers: Mapping[str, str], name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    if not NUMBER.fullmatch(text):
        raise InvalidArgument(f"must be a number, got {text[:64]!r}", field=name)
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise InvalidArgument(f"must be a finite number greater than 0, got {text[:64]!r}", field=name)
    return value
