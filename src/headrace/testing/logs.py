"""Logs of a test's brokers, through the standard library's `logging`: pytest shows them, and `caplog` has them."""

from __future__ import annotations

import structlog


def use_standard_logging() -> None:
    """Send the logs of this process to `logging`, under the names of their modules. Does nothing where the program has
    set up structlog for itself."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            _one_line,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _one_line(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """The event, then its facts as KEY=VALUE, then an exception where there is one."""
    text, error = event.pop("event", ""), event.pop("exception", "")
    line = " ".join([str(text), *(f"{key}={value}" for key, value in event.items())])
    return f"{line}\n{error}" if error else line
