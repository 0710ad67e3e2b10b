"""Bodies of every shape: whatever comes, the answer is a 200 or an error of the client's, never a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.router.http.fields import ChatBody, CompletionBody
from tests.fakes import StubConfig, StubNode
from tests.router.http.kit import http_router

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([2**31, 2**63, -(2**63), 1e308, "\x00", "\ud800", "system", "text"]),
)
KEYS = ["role", "content", "type", "text", "5", "-1", "x"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "5", "-1", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
ROLES = st.sampled_from(["user", "assistant", "system", "x", ""])
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": st.text(max_size=4) | VALUES}), max_size=3
)


def bodies(kind: type, **usual: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly right, with a few fields of any value."""
    odd = st.dictionaries(st.sampled_from(sorted(kind.model_fields)), VALUES, max_size=3)  # type: ignore[attr-defined]
    right = st.fixed_dictionaries(usual | {"max_tokens": st.integers(1, 3)})
    return st.builds(lambda one, other: one | other, right, odd)


CASES = st.one_of(
    st.tuples(
        st.just("/v1/completions"),
        bodies(CompletionBody, prompt=st.text(max_size=3) | st.lists(st.integers(0, 400), max_size=3)),
    ),
    st.tuples(st.just("/v1/chat/completions"), bodies(ChatBody, messages=MESSAGES)),
    st.tuples(st.sampled_from(["/v1/completions", "/v1/chat/completions"]), VALUES),
)


async def test_no_body_makes_a_500() -> None:
    loop = asyncio.get_running_loop()
    node = StubNode(config=StubConfig(step_s=0.0, max_model_len=64))
    async with http_router(node) as front:
        statuses = set()

        async def post(path: str, body: Any) -> None:
            data = json.dumps(body).encode()  # NaN and lone surrogates included
            response = await front.post(path, data)
            assert response.status_code in (200, 400), (path, body, response.text)
            statuses.add(response.status_code)
            if response.status_code == 400:
                assert response.json()["error"]["message"]

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(CASES)
        def run(case: tuple[str, Any]) -> None:
            asyncio.run_coroutine_threadsafe(post(*case), loop).result(20)

        await asyncio.to_thread(run)
        assert statuses == {200, 400}
        await front.cluster.all_idle()
