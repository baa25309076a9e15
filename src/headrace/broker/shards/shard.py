"""One partition of an internal topic and the state machines that it keeps: what the drivers of all coordinators share.

Promises:
- The events that a step leads to are done before `send` returns, in their order.
- A record counts only once it is committed by the acks=all rule.
- Nothing is kept before the log was read to its end.

Where the fate of an append is in doubt (the leadership ended, the disk failed), the whole shard is given up. Waiting
clients hear that they must look for the coordinator again, and the log says what happened. Loop-only, save that records
are decoded in worker threads.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from headrace.base.ids import Offset
from headrace.base.limits import SHARD_NAMES_PER_SLICE, SHARD_REFUSED_NAMES_MAX
from headrace.base.ports import Clock
from headrace.broker.kit.lease import Lease
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.shards.loading import committed
from headrace.broker.shards.timers import Timers, elapsed_ms
from headrace.broker.shards.waiters import Waiter, Waiters
from headrace.broker.shards.writes import IN_DOUBT, Entry, Settled, batch
from headrace.coordinators.values import Moment
from headrace.logs import get_logger
from headrace.wire.errors import ErrorCode
from headrace.wire.walking import UNWALKED

log = get_logger(__name__)

Kept = TypeVar("Kept")
"""The value of one name: a group, or a transactional id."""
Event = TypeVar("Event")
"""The events that its machine takes."""


class Shard(ABC, Generic[Kept, Event]):
    """See the module. This broker leads `partition` as long as the shard lives; `on_lost` is called when it no longer
    does. `timeout_ms`: how long a client waits for the disk."""

    NOUN: str
    """The word for one that is kept, for the log."""

    def __init__(
        self, partition: Partition, *, clock: Clock, lease: Lease, timeout_ms: int, on_lost: Callable[[], None]
    ) -> None:
        self.partition = partition
        self.kept: dict[str, Kept] = {}
        self.loaded = self.lost = False
        self._clock: Final = clock
        self._lease: Final = lease
        self._on_lost: Final = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiters = Waiters(timeout_ms)
        self._events: deque[tuple[str, Event]] = deque()
        self._working = False
        self._entries: list[Entry] = []
        """Entries to be written next, together."""
        self._timers = Timers(self._wake)
        self._refused_names: set[str] = set()
        """Names whose refused record was told, and of which no record was written since."""
        self._end = Offset(0)
        """All that is to be loaded lies below this offset."""

    # for each coordinator to say

    @abstractmethod
    def _step(self, name: str, event: Event) -> None:
        """Have the machine of this name take the event, and carry out what follows."""

    @abstractmethod
    def _wake(self, name: str) -> None:
        """The alarm of this name is over."""

    @abstractmethod
    def _written(self, write: int, error: ErrorCode) -> Event:
        """The event that this write is durable; `error` is the answer despite that."""

    @abstractmethod
    def _refused(self, write: int, error: ErrorCode) -> Event:
        """The event that nothing of this write is in the log."""

    @abstractmethod
    def told_as(self, error: ErrorCode) -> ErrorCode:
        """The error for a client, from the outcome of an append, in codes that these clients know."""

    @abstractmethod
    async def load(self) -> None:
        """Read the log up to the end that `ready` noted. Raises CorruptData or OSError where it cannot be read."""

    def _let_go(self) -> None:
        """The shard is lost: forget what else there is."""

    # driving

    @property
    def is_in_doubt(self) -> bool:
        """Whether, as far as this broker knows, another may coordinate these names by now."""
        return self.partition.has_followers and not self._lease.is_held

    def registered(self, waiting: Waiter) -> int:
        """Return a number for a caller that will wait for the disk."""
        waiter = self._waiters.number()
        self._waiters.await_disk(waiter, waiting)
        return waiter

    def send(self, name: str, event: Event) -> None:
        """Put one event to one name. The events that it leads to are done before this returns. Does nothing where the
        shard is lost."""
        if self.lost:
            return
        self._events.append((name, event))
        self._work()

    def _work(self) -> None:
        if self._working:
            return
        self._working = True
        try:
            while self._events:
                self._step(*self._events.popleft())
        finally:
            self._working = False

    def _now(self) -> Moment:
        return Moment(monotonic_ms=elapsed_ms(self._loop.time()), wall_ms=self._clock.now_ms())

    async def sweep(self, build: Callable[[Kept], Event | None]) -> None:
        """Give every name the event that `build` makes for it, if any, a slice of them at a time."""
        for at, name in enumerate(list(self.kept), 1):
            found = self.kept.get(name)
            event = None if found is None else build(found)
            if event is not None:
                self.send(name, event)
            if at % SHARD_NAMES_PER_SLICE == 0:
                await asyncio.sleep(0)

    # writing

    def _write_entries(self) -> None:
        entries, self._entries = self._entries, []
        if entries:
            self._write(entries)

    def _write(self, entries: list[Entry]) -> None:
        """Write the entries in one batch."""
        if self.lost:
            return
        now_ms = self._clock.now_ms()
        data = batch(entries, now_ms)
        if entries[0].producer is None:
            outcome = self.partition.append(data, needs_isr=True, walked=UNWALKED)
        else:
            outcome = self.partition.append_in_transaction(data)
        if not isinstance(outcome, WriteRefusal):
            self.partition.park_commit(outcome.end, Settled(self, entries))
        elif self.partition.lacks_room and self.partition.availability is ErrorCode.NONE:
            for name, write, *_ in entries:  # the lack of room is reported for all partitions together
                self._refuse(name, write, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif outcome.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and self.partition.availability is ErrorCode.NONE:
            for name, write, *_ in entries:  # it is led here for now; a shard that is given up would load it at once
                self._refuse(name, write, ErrorCode.NOT_COORDINATOR)
        elif outcome.error in IN_DOUBT:
            self.lose()
        elif outcome.error is ErrorCode.MESSAGE_TOO_LARGE and len(entries) > 1:
            for one in entries:  # it may be but one of them
                self._write([one])
        else:
            for name, write, *_ in entries:
                self._tell_refused(name, outcome.message)
                self._refuse(name, write, self.told_as(outcome.error))

    def _tell_refused(self, name: str, reason: str) -> None:
        """Log it once for each name, and not again before a record of that name is written: it is tried again."""
        if name not in self._refused_names and len(self._refused_names) < SHARD_REFUSED_NAMES_MAX:
            self._refused_names.add(name)
            log.warning(f"a {self.NOUN}'s record was refused", **{self.NOUN: name}, reason=reason)

    def _refuse(self, name: str, write: int, error: ErrorCode) -> None:
        """Tell a name that its write was refused, before anything else is decided about it."""
        self._events.appendleft((name, self._refused(write, error)))
        self._work()

    def on_written(self, name: str, write: int, error: ErrorCode) -> None:
        """The write is durable: told by `Settled`."""
        self._refused_names.discard(name)
        self.send(name, self._written(write, error))

    # the end

    def lose(self) -> None:
        """Give the shard up: nothing here counts any more. Idempotent."""
        if self.lost:
            return
        self.lost, self.loaded = True, False  # a client that is answered now may ask for more at once
        self._events.clear()
        self._entries.clear()
        self.kept.clear()
        self._let_go()
        self._timers.close()
        self._waiters.close(ErrorCode.NOT_COORDINATOR)
        self._on_lost()

    def refuse_parked(self) -> None:
        """Send clients that wait for others elsewhere, as the broker stops. Writes under way are awaited."""
        self._waiters.answer_parked(ErrorCode.NOT_COORDINATOR)

    # loading

    async def ready(self) -> None:
        """Wait until the log is committed up to its end as of this call, or the shard is lost. Other replicas may be
        missing for that, and uncommitted records could still be lost."""
        self._end = self.partition.log.log_end_offset
        if await committed(self.partition, self._end) is not ErrorCode.NONE:
            self.lose()

    @property
    def _place(self) -> dict[str, object]:
        """The partition, for the log."""
        return {"topic": self.partition.topic, "partition": self.partition.topic_partition.partition}
