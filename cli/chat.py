"""`baton chat`: a conversation with a running deployment."""

from __future__ import annotations

import contextlib
import sys

from baton.cli.calls import connected, in_words
from baton.cli.generate import Answer, Options, note_limit, show_all, stream
from baton.cli.terminal import complain, notes, told
from baton.core.errors import BatonError, InvalidArgument
from baton.proto.v1.inference_pb2_grpc import InferenceStub

HELP = """/reset  forget the conversation
/exit   leave (or Ctrl-D)
/help   this list
Ctrl-C stops an answer."""


class Conversation:
    """What was said, and the way to say more. `system`: what the model is told first."""

    def __init__(self, stub: InferenceStub, endpoint: str, options: Options, system: str | None) -> None:
        self._stub = stub
        self._endpoint = endpoint
        self._options = options
        self._first = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._first)

    def reset(self) -> None:
        self.messages = list(self._first)

    def say(self, line: str) -> None:
        """Ask and show the answer. A question without an answer is forgotten; BatonError says why."""
        asked = [*self.messages, {"role": "user", "content": line}]
        request = self._options.request(asked)
        answer = Answer()
        try:
            with in_words(self._endpoint):
                show_all(stream(self._stub, request, answer, self._options.timeout_s), answer)
            note_limit(answer, self._options)
        except KeyboardInterrupt:
            notes.print("[dim](stopped)[/]")
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]


def chat(endpoint: str, options: Options, system: str | None) -> None:
    """Until /exit, Ctrl-D, or Ctrl-C twice at the prompt. A script's conversation ends at the first error."""
    person = sys.stdin.isatty()
    # Ctrl-C anywhere but in an answer and at the first prompt that meets it: leave.
    with connected(endpoint) as channel, contextlib.suppress(KeyboardInterrupt):
        conversation = Conversation(InferenceStub(channel), endpoint, options, system)
        if person:
            notes.print("[dim]Ctrl-C stops an answer, Ctrl-D ends the conversation, /help lists commands[/]")
        while (line := _ask(person)) is not None:
            word = line.strip()
            if word in ("/exit", "/quit"):
                return
            if word.startswith("/") and " " not in word:
                _command(word, conversation)
            elif word:
                try:
                    conversation.say(line)
                except BatonError as error:
                    if not person:
                        raise
                    complain(told(error))


def _command(word: str, conversation: Conversation) -> None:
    if word == "/reset":
        conversation.reset()
        notes.print("[dim](forgotten)[/]")
    elif word == "/help":
        notes.print(HELP, markup=False)
    else:
        notes.print(f"no such command: {word} (/help lists them)", markup=False)


def _ask(person: bool) -> str | None:
    """The next line; None: that was the last."""
    interrupts = 0
    while True:
        try:
            line = input("> " if person else "")
            line.encode()  # what is not UTF-8 comes as surrogates in some locales
            return line
        except EOFError:
            if person:
                notes.print()
            return None
        except UnicodeError:
            raise InvalidArgument("standard input is not UTF-8 text") from None
        except KeyboardInterrupt:
            interrupts += 1
            notes.print()
            if interrupts > 1 or not person:
                return None
            notes.print("[dim](Ctrl-D leaves, and so does Ctrl-C again)[/]")
