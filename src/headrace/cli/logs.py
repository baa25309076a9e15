"""Structured logs on standard error: readable on a terminal, JSON lines anywhere else."""

from __future__ import annotations

import logging
import sys

import structlog

from headrace.base.errors import UsageError

LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


def configure_logs(*, json_logs: bool, level: str = "info") -> None:
    """Set up structlog for this process. `json_logs`: JSON even on a terminal. Raises UsageError."""
    if level.upper() not in LEVELS:
        raise UsageError(f"--log-level {level} cannot be: choose {', '.join(LEVELS).lower()}.")
    on_terminal = sys.stderr.isatty() and not json_logs
    renderer: structlog.typing.Processor = (  # no values of variables: secrets are among them
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.RichTracebackFormatter(show_locals=False))
        if on_terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if on_terminal else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
