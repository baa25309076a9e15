"""The beginning of a log behind durable history, as a value. `storage.tier.frontier` reads it; a broker without a store
loads that not."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset
from headrace.replica.producers import ProducerStates

DAMAGE: Final = (CorruptData, EOFError)
"""Errors which say that the store was read, and its contents are not what the catalog says. A missing object is no
damage: a store that is not mounted, or is another one, lacks every object."""


class Beginning(NamedTuple):
    """The beginning of a log behind durable history."""

    offset: Offset
    epoch: LeaderEpoch
    """Leader epoch of the record before it; -1 where there is none."""
    producers: ProducerStates
    """State of the producers as of `offset`."""


class NotTold(CorruptData):
    """History matches the catalog, as far as there is any, but does not contain its producers' state."""
