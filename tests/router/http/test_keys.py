"""Bearer keys: who may come in, and what a file of keys may hold."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from baton.core.errors import InvalidArgument
from baton.router.http.keys import read_keys
from baton.router.http.server import HttpOptions
from tests.fakes import StubNode
from tests.router.http.kit import http_router


async def test_one_of_the_keys_opens_v1_and_the_probes_need_none(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst-key-1\n\n  second-key-2  \n")
    async with http_router(StubNode(), options=HttpOptions(keys=read_keys(str(path)))) as front:
        for key in ("first-key-1", "second-key-2"):
            client = front.openai.with_options(api_key=key)
            assert (await client.completions.create(model="stub", prompt="a")).choices
        for key in ("first-key", "second-key-22", "caf\u00e9-key-12", "# ours"):
            headers = {"authorization": f"Bearer {key}".encode()}
            response = await front.plain.get("/v1/models", headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        with pytest.raises(openai.AuthenticationError):
            await front.openai.models.list()
        for headers in ({}, {"authorization": "Basic first-key-1"}, {"authorization": "Bearer"}):
            assert (await front.plain.get("/v1/models", headers=headers)).status_code == 401
        for path_ in ("/health/live", "/health/ready", "/metrics", "/version"):
            assert (await front.plain.get(path_)).status_code == 200


@pytest.mark.parametrize("content", [b"", b"# none\n\n", b"short\n", b"\xff\xfe\n"])
def test_a_file_without_keys_stops_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        read_keys(str(path))
    assert caught.value.field == "router.http.api_keys_file"
    with pytest.raises(InvalidArgument):
        read_keys(str(tmp_path / "absent"))
