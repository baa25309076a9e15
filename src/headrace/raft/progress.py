"""A leader's view of one member's log, and how much it may send to that member.

Promises:
- `match_index` is durable on the member and never falls.
- No more messages are under way than the window allows.
- There is one probe at a time until the member has answered.

Source: the Raft paper's nextIndex and matchIndex; etcd's raft for the three modes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from headrace.raft.messages import SnapshotMark


class Mode(Enum):
    PROBE = "probe"
    """The leader searches for the entry where the logs agree, with one message at a time."""
    REPLICATE = "replicate"
    """Entries are sent before earlier ones are answered, as many as the window allows."""
    SNAPSHOT = "snapshot"
    """The member needs entries that are no longer in the log. It gets a snapshot, and no entries meanwhile."""


class Window:
    """Unanswered messages with entries: the index of the last entry of each, and its bytes."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._under_way: deque[tuple[int, int]] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """One message may exceed the bytes, because an entry may be larger than the window."""
        return len(self._under_way) >= self._messages_max or self._bytes >= self._bytes_max

    def add(self, last_index: int, size: int) -> None:
        assert not self.is_full, "who sends looks first"
        self._under_way.append((last_index, size))
        self._bytes += size

    def free(self, match_index: int) -> None:
        """Everything up to `match_index` has arrived."""
        while self._under_way and self._under_way[0][0] <= match_index:
            self._bytes -= self._under_way.popleft()[1]

    def clear(self) -> None:
        self._under_way.clear()
        self._bytes = 0


@dataclass(slots=True)
class Sending:
    """A snapshot on its way, one chunk at a time."""

    mark: SnapshotMark
    offset: int = 0
    """Offset of the chunk whose answer is awaited."""
    silent_rounds: int = 0
    """Heartbeats answered since that chunk was sent."""


@dataclass(slots=True)
class Progress:
    """Invariants: ``match_index < next_index``; ``sending`` is there exactly in mode SNAPSHOT."""

    next_index: int
    window: Window
    match_index: int = 0
    mode: Mode = Mode.PROBE
    probed: bool = False
    """A probe is under way; another one goes with the next heartbeat's answer."""
    active: bool = False
    """The member was heard from since the quorum was last checked."""
    was_active: bool = False
    """The member was heard from between the last two checks of the quorum."""
    round: int = 0
    """The newest round of heartbeats that the member has answered."""
    sending: Sending | None = field(default=None)

    def become_probe(self, next_index: int) -> None:
        self.mode, self.sending, self.probed = Mode.PROBE, None, False
        self.next_index = max(self.match_index + 1, next_index)
        self.window.clear()

    def become_replicate(self) -> None:
        self.mode, self.sending, self.probed = Mode.REPLICATE, None, False
        self.next_index = self.match_index + 1
        self.window.clear()

    def become_snapshot(self, mark: SnapshotMark) -> None:
        self.mode, self.sending, self.probed = Mode.SNAPSHOT, Sending(mark), False
        self.window.clear()

    def on_match(self, index: int) -> bool:
        """Everything up to `index` is durable on the member. Returns whether that is news."""
        if index <= self.match_index:
            return False
        self.match_index = index
        self.next_index = max(self.next_index, index + 1)
        self.window.free(index)
        return True
