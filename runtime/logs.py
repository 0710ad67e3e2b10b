"""Structured logs on standard error, the same for our own code and for libraries that use `logging`."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from baton.runtime.config import LoggingConfig


def configure_logs(config: LoggingConfig, process: str) -> None:
    """Set up this process's logs. process: its name in every line, like `prefill-0`."""
    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _ProcessName(process),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        if _on_a_terminal(config)
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render = _renderers(config)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    handler.addFilter(_tells_of_trouble)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))


def _tells_of_trouble(record: logging.LogRecord) -> bool:
    """gRPC calls it an error where a client left just as its call's status was to be sent: it is none."""
    if record.exc_info is None or not record.name.startswith("grpc"):
        return True
    return "SendStatusFromServerOperation" not in str(record.exc_info[1])


def _on_a_terminal(config: LoggingConfig) -> bool:
    return config.format == "console" and sys.stderr.isatty()


class _ClearLine:
    """A launcher's spinner may be on the line: it draws itself again below."""

    def __init__(self, render: structlog.dev.ConsoleRenderer) -> None:
        self._render = render

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        return f"\r\x1b[2K{self._render(logger, method, event)}"


class _ProcessName:
    """Not a context variable: those are not seen by other threads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event["process"] = self._name
        return event


def _renderers(config: LoggingConfig) -> list[Processor]:
    # Tracebacks without local variables: those hold prompts.
    if config.format == "json":
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(default=str),
        ]
    plain = structlog.dev.plain_traceback
    if _on_a_terminal(config):
        console = structlog.dev.ConsoleRenderer(pad_event_to=0, pad_level=False, exception_formatter=plain)
        return [_ClearLine(console)]
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]


@contextlib.contextmanager
def request_context(request_id: str) -> Iterator[None]:
    """Every line logged inside (in this task) carries the request's id."""
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        yield
