"""Structured logs: one JSON object per line on stdout, a fixed snake_case event name plus fields.

info: normal progress · warning: dropped or delayed · error: a human should look. The bus binds stage, task,
trajectory and trace to everything that is logged while a message is handled.
"""

import logging
import sys
from contextlib import suppress
from typing import TextIO

import structlog


def configure_logs(service: str, replica: str, level: str) -> None:
    """Make structlog and the standard library's loggers write JSON lines."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without variables: they may contain passwords.
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: structlog.WriteLogger(_Lossy(sys.stdout)),  # pyright: ignore[reportArgumentType]  # it writes, and flushes
    )
    structlog.contextvars.bind_contextvars(service=service, replica=replica)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.processors.JSONRenderer(), foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


class _Lossy:
    """An output that drops lines which cannot be written: a full disk, or a closed pipe, must not end a service."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._output.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._output.flush()
