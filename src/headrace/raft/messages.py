"""What goes into a consensus core and what comes out: the interface between it and its driver.

The driver's duty, in this order: persist `Ready.hard_state` and `Ready.entries` (synced), step `Persisted`, apply
`Ready.committed`. Source: the shape of etcd's raft; Ongaro's thesis for the terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.base.ids import NO_LEADER, BrokerId


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the commit log. `data` is the driver's (metadata events); empty: a leader's first of its term."""

    term: int
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class HardState:
    """What a voter must remember over a restart: its term, and for whom it voted in it."""

    term: int = 0
    vote: BrokerId = NO_LEADER


@dataclass(frozen=True, slots=True)
class Campaign:
    """Start an election: at start, and when a leader is missed."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Append these, one entry each, in order. Only to a leader."""

    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Persisted:
    """Everything up to this entry is synced on this node."""

    term: int
    index: int


Event: TypeAlias = Campaign | Propose | Persisted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the driver is to do."""

    hard_state: HardState | None = None
    """To be persisted with `entries`; None: unchanged."""
    entries: tuple[Entry, ...] = ()
    """To be persisted, in order."""
    committed: tuple[Entry, ...] = ()
    """To be applied, in order, each exactly once since the snapshot."""


NOTHING: Final = Ready()
