"""Long texts: others go on while one is tokenized, and what no context holds is not tokenized at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from baton.core.errors import PromptTooLong
from baton.core.model import ModelInfo
from baton.proto.v1 import inference_pb2 as pb
from baton.router.prepare import Limits, prepare
from baton.router.text import load_tokenizer
from baton.router.text.tables import longest_token
from tests.router.machine_kit import FINGERPRINT
from tests.router.text.codecs import codec
from tests.tokenizers_t import build_tokenizer, write_tokenizer

MODEL = ModelInfo("t", 331, 512, (2,), FINGERPRINT)


def test_other_threads_go_on_meanwhile() -> None:
    one = codec("demo")
    text = "The quick brown fox. " * 20_000
    turns, done = 0, threading.Event()

    def work() -> None:
        one.encode(text)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 10


def test_what_no_context_holds_is_refused_before_it_is_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    one = load_tokenizer(str(tmp_path))
    assert one.longest_token is not None
    most = 512 * one.longest_token
    monkeypatch.setattr(one, "encode", lambda text: pytest.fail("it was tokenized"))
    monkeypatch.setattr(one, "encode_chat", lambda *args, **more: pytest.fail("it was tokenized"))
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * most), pb.ChatMessage(content="y")])
    for request in (pb.GenerateRequest(text="x" * (most + 1)), pb.GenerateRequest(chat=chat)):
        with pytest.raises(PromptTooLong, match=f"has {most + 1} characters"):
            prepare(request, MODEL, one, Limits(2**26), "id")


def test_no_token_spells_more_than_the_longest() -> None:
    tokenizer = build_tokenizer()
    longest = longest_token(tokenizer)
    assert longest is not None
    for text in ("x" * 1000, "<|im_start|>" * 50, " " * 500, "é" * 300, "the quick brown fox " * 40):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert len(text.encode()) <= longest * len(ids)


def _normalizing(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Strip()


def _stripping(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken("<eats>", rstrip=True)])


@pytest.mark.parametrize("change", [_normalizing, _stripping])
def test_tokens_that_may_stand_for_any_length(change: object) -> None:
    tokenizer = build_tokenizer()
    assert callable(change)
    change(tokenizer)
    assert longest_token(tokenizer) is None
