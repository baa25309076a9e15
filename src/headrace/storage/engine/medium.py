"""The words in which operators and clients are told of what keeps an engine's logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.base.values import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Medium(Value):
    """Clauses and sentences. A clause has no full stop."""

    name: str
    """As in "... is full"."""
    of_broker: str
    """As in "... has 5 bytes left", of a broker."""
    has_room: str
    """It says how much room there is, and does not for now."""
    larger: str
    """An order that ends a lack of room."""
    full: str
    """The refusal of a write for which there is no room."""
    failed: str
    """The refusal of a write to a log that failed."""
    mend: str
    """An order behind a log that failed. The broker is restarted then."""


DISK: Final = Medium(
    name="the disk",
    of_broker="its logs' disk",
    has_room="the logs' disk does not say how much room it has",
    larger="make the volume larger",
    full="The broker's disk has no room; nothing was appended. Retry: it is taken once there is some.",
    failed="The log's disk failed; the partition is offline.",
    mend="its disk failed; replace the disk",
)
REDIS: Final = Medium(
    name="the memory of Redis",
    of_broker="its Redis",
    has_room="Redis does not say how much memory it has left",
    larger="raise its maxmemory",
    full="Redis has no memory left; nothing was appended. Retry: it is taken once there is some.",
    failed="The log in Redis cannot be used; the partition is offline.",
    mend="its log in Redis cannot be used; mend what the reason names",
)
