"""A request that wants a pair of nodes now."""

from __future__ import annotations

from collections.abc import Iterable

from baton.core.model import Fingerprint
from baton.core.request import Request, Slo
from baton.core.value import value
from baton.router.lenders import Lenders
from baton.router.prefix_view import PromptChains


@value
class Ask:
    """expected_output_tokens: a guess at what it will yet make. waited_s: since it arrived. lenders: None
    where nothing is fetched. lengths: how many tokens it may make in all, each as likely as the next; none
    if nothing is known of that."""

    request: Request
    now: float
    chains: PromptChains
    expected_output_tokens: float
    fingerprint: Fingerprint | None = None
    avoid: Iterable[str] = ()
    avoid_pairs: Iterable[tuple[str, str]] = ()
    waited_s: float = 0.0
    lenders: Lenders | None = None
    lengths: tuple[int, ...] = ()

    @property
    def slo(self) -> Slo:
        return self.request.slo
