"""Logging of the platform's processes: JSON lines, or readable text on a terminal.

Within `attempt`, each line has job, step and attempt, including the lines of libraries.
"""

import logging
import sys
from contextlib import AbstractContextManager
from typing import TextIO

import structlog
from structlog.stdlib import ProcessorFormatter, add_logger_name
from structlog.typing import Processor

_COMMON: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


def configure(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Configure logging of this process: our messages from `level` on, libraries' warnings."""
    is_terminal = stream.isatty()
    last: list[Processor] = [
        structlog.dev.ConsoleRenderer()
        if is_terminal
        else structlog.processors.JSONRenderer(sort_keys=True)
    ]
    if not is_terminal:
        last.insert(0, structlog.processors.format_exc_info)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[add_logger_name, *_COMMON],
            processors=[ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    own = logging.getLogger("kgym")
    own.setLevel(level)
    structlog.configure(
        processors=[*_COMMON, ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: own,
    )


def attempt(*, job: int, step: int, attempt: int) -> AbstractContextManager[None]:
    """Context manager: add these numbers to each line logged within, and in tasks started there."""
    return structlog.contextvars.bound_contextvars(job=job, step=step, attempt=attempt)
