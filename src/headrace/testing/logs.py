"""Logs of a test's brokers, through the standard library's `logging`: pytest shows them, and `caplog` has them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace import logs

if TYPE_CHECKING:
    from structlog.typing import EventDict

FRAMES = 4
"""From the record's maker to the line that logs."""


def use_standard_logging() -> None:
    """Send the logs of this process to `logging`, under the names of their modules. Does nothing where the program has
    set up structlog for itself."""
    if "structlog" in sys.modules:
        _set_up_structlog()
    else:
        logs.listen(_write)


def _write(name: str, level: str, event: str, facts: Mapping[str, Any]) -> None:
    logger, number = logging.getLogger(name), logging.getLevelNamesMapping()[level.upper()]
    if logger.isEnabledFor(number):
        own = dict(facts)
        error = own.pop("exc_info", None)
        logger.log(number, _line(event, own), exc_info=error, stacklevel=FRAMES)


def _set_up_structlog() -> None:
    """The program uses structlog, and may capture what is logged through it."""
    import structlog

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


def _one_line(_: object, __: str, event: EventDict) -> str:
    text, error = event.pop("event", ""), event.pop("exception", "")
    line = _line(text, event)
    return f"{line}\n{error}" if error else line


def _line(event: str, facts: Mapping[str, Any]) -> str:
    """The event, then its facts as KEY=VALUE."""
    return " ".join([event, *(f"{key}={value}" for key, value in facts.items())])
