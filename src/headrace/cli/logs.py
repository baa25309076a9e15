"""Structured logs on standard error: readable on a terminal, JSON lines anywhere else."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(*, json_logs: bool) -> None:
    """Set up structlog for this process. `json_logs`: JSON even on a terminal."""
    on_terminal = sys.stderr.isatty() and not json_logs
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
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
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
