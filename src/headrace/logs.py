"""Loggers by the names of modules. They write through structlog, which is loaded when something is first logged.

structlog loads rich, and both take a tenth of the time in which a test's first broker is imported. A test's broker has
a listener instead, which knows whether anybody hears, and needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

Listener = Callable[[str, str, str, Mapping[str, Any]], None]
"""Takes the logger's name, the level's name in small letters, the event and its facts."""
_listener: Listener | None = None


def listen(listener: Listener) -> None:
    """Give what this process logs to the listener, unless the program has set up structlog for itself."""
    global _listener
    _listener = listener


class Log:
    """The logger of one name. Where a fact is `exc_info`, it is an exception, whose trace is told."""

    __slots__ = ("_name", "_structured")

    def __init__(self, name: str) -> None:
        self._name = name
        self._structured: Any = None

    def debug(self, event: str, **facts: Any) -> None:
        self._log("debug", event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._log("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._log("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._log("error", event, facts)

    def critical(self, event: str, **facts: Any) -> None:
        self._log("critical", event, facts)

    def _log(self, level: str, event: str, facts: Mapping[str, Any]) -> None:
        if _listener is not None and not _has_own_structlog():
            _listener(self._name, level, event, facts)
            return
        if self._structured is None:
            import structlog

            self._structured = structlog.get_logger(self._name)
        getattr(self._structured, level)(event, **facts)


def get_logger(name: str) -> Log:
    """Return the logger of a module: `log = get_logger(__name__)`."""
    return Log(name)


def _has_own_structlog() -> bool:
    structlog = sys.modules.get("structlog")
    return structlog is not None and bool(structlog.is_configured())
