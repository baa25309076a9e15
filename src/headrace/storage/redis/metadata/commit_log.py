"""The commit log in Redis: brokers of one namespace share it, and whoever has the lease appends (`storage.commit_log`).

An epoch is the number of a lease. Entries reach the tail as every broker reads them from the Stream, the holder's own
too. Promises, beside those of the port:
- While Redis is away nothing is decided, and all goes on by itself when it is back.
- Where a failover of Redis lost entries, each broker notices and says so. It keeps its state until a controller has
  gone on behind what is left (`doubting`). Then it takes the state that Redis has, whose index is higher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from headrace.base.errors import HeadraceError, StorageFailure
from headrace.base.ids import BrokerId, ClusterId, DirectoryId
from headrace.base.limits import (
    METADATA_EVENTS_PER_SNAPSHOT,
    REDIS_BACKOFF_MS_MAX,
    REDIS_BACKOFF_MS_MIN,
    REDIS_METADATA_AHEAD_MS,
    REDIS_METADATA_BLOCK_MS,
    REDIS_METADATA_KEPT_ENTRIES,
)
from headrace.logs import get_logger
from headrace.storage.commit_log import Committed, EpochOver, Tail
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.troubles import Troubles
from headrace.storage.redis.metadata.commits import Commits
from headrace.storage.redis.metadata.doubting import Doubting, Known
from headrace.storage.redis.metadata.durability import Durability
from headrace.storage.redis.metadata.lease import ControllerLease, Holder, LeaseTimes
from headrace.storage.redis.metadata.stream import Entry, LogReplaced, MetadataStream, Position, parts_of
from headrace.storage.redis.server_side.functions import MetadataFunctions, Status
from headrace.storage.redis.server_side.keys import Keys

log = get_logger(__name__)


class RedisStore:
    """The cluster of one namespace: a `broker.home.joining.SharedStore`."""

    def __init__(self, client: Redis, keys: Keys, place: str) -> None:
        self.place: Final = place
        self._client = client
        self._key: Final = keys.cluster

    async def cluster_id(self) -> ClusterId | None:
        """Raises RedisFailure."""
        found = await self._client.call("GET", self._key, key=self._key)
        return None if found is None else ClusterId(found.decode())

    async def begin(self, cluster_id: ClusterId) -> ClusterId:
        """Raises RedisFailure."""
        await self._client.call("SET", self._key, cluster_id, "NX", key=self._key)
        found = await self.cluster_id()
        assert found is not None, "one was set"
        return found


class RedisCommitLog:
    """A `CommitLog`. `commands` and `reading` are connected, and belong to it: a read on the second may wait long."""

    quorum: Final = None
    is_alone: Final = False

    def __init__(
        self,
        commands: Redis,
        reading: Redis,
        keys: Keys,
        *,
        name: str,
        about: Callable[[], Holder | None],
        learn: Callable[[Holder], None] = lambda _: None,
        times: LeaseTimes | None = None,
        durability: Durability | None = None,
    ) -> None:
        """`name`: tells this process from all others. `about`: this broker, once others can reach it. `learn` is called
        with each holder."""
        self._learn = learn
        self._commands = commands
        self._reading = reading
        self._functions = MetadataFunctions(keys)
        self._head = MetadataStream(commands, keys)
        self._stream = MetadataStream(reading, keys)
        self._durability = durability or Durability(times=times)
        self._lease = ControllerLease(
            commands,
            self._functions,
            Doubting(commands, self._functions, self._head, self._durability, self._known),
            name=name,
            about=about,
            changed=self._on_lease,
            times=times or LeaseTimes(),
        )
        self._troubles = Troubles(asyncio.get_running_loop().time, "changes of the metadata")
        self._at = Position()
        self._ahead_since: float | None = None
        """When this node noticed that it has read more than Redis has, in the loop's time; None: it has not."""
        self._commits: Commits | None = None
        """Made with the first entry of a lease."""
        self._looking: asyncio.Task[int] | None = None
        self._next_look: asyncio.Task[int] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot: asyncio.Task[None] | None = None
        self._events_in_snapshot = 0
        self._error: Callable[[], Exception] | None = None

    # life

    async def start(self, tail: Tail, changed: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._tail, self._changed, self._failed = tail, changed, failed
        try:
            found = await self._stream.recover()
        except RedisFailure as error:
            raise StorageFailure(f"The cluster's metadata cannot be read from Redis: {error}") from error
        self._at = found.at
        tail.begin(found.image, found.events)
        for work in (self._follow(), self._lease.keep()):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(self._on_end)
            self._tasks.append(task)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error if isinstance(error, Exception) else StorageFailure(repr(error)))

    def halt(self, error: Callable[[], Exception]) -> None:
        self._error = error
        for task in (*self._tasks, self._looking, self._next_look, self._snapshot):
            if task is not None:
                task.cancel()
        self._drop_commits()

    async def stop(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lease.release()
        await self._commands.close()
        await self._reading.close()

    def _known(self) -> Known:
        return Known(self._at, self._tail.image.doubts)

    # epochs

    @property
    def term(self) -> int:
        return self._lease.token

    @property
    def holds(self) -> bool:
        return self._lease.held is not None and self._error is None

    @property
    def decided_to(self) -> int | None:
        decided = self._lease.decided
        if decided is None or (decided.index == self._at.index and decided.chain != self._at.chain):
            return None  # this node is to hear first that the log is another
        return decided.index

    @property
    def leader(self) -> BrokerId | None:
        holder = self._lease.holder
        return None if holder is None else holder.broker

    @property
    def holder(self) -> Holder | None:
        """The holder of the lease, as far as this node knows."""
        return self._lease.holder

    def leader_before(self) -> tuple[BrokerId, DirectoryId, float] | None:
        return self._lease.before()

    def holder_died(self, broker: BrokerId) -> None:
        """Note that this broker's process is plainly dead: where it holds the epoch, nobody waits for it."""
        self._lease.holder_died(broker)

    def append(self, epoch: int, after: int, entries: Sequence[bytes]) -> str | None:
        lease = self._lease.held
        if lease is None or lease.token != epoch:
            return "This broker is not the controller any more."
        if self._commits is None:
            image = self._tail.image
            self._commits = Commits(
                self._commands,
                self._functions,
                lease,
                image,
                over=self._lease.drop,
                on_end=self._on_end,
                durability=self._durability,
                troubles=self._troubles,
            )
        assert self._commits.next_index == after + 1, "nobody else appends under its lease"
        return self._commits.add(entries)

    async def confirmed(self) -> int:
        """See the port. Callers that come together share one look, which begins after they came."""
        if self._next_look is None:
            loop = asyncio.get_running_loop()
            self._next_look = loop.create_task(self._look(self._looking))
            self._next_look.add_done_callback(_seen)
        try:
            return await asyncio.shield(self._next_look)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error() from None
            raise

    async def _look(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._looking, self._next_look = self._next_look, None
        try:
            index = (await self._head.head()).index
            if await self._lease.confirm():
                return index
        except RedisFailure as error:
            raise EpochOver(f"Redis does not say who the controller is: {error}") from error
        raise EpochOver("This broker is not the controller any more.")

    def _on_lease(self) -> None:
        if (holder := self._lease.holder) is not None:
            self._learn(holder)
        if self._lease.held is None:
            self._drop_commits()
        self._changed()

    def _drop_commits(self) -> None:
        if self._commits is not None:
            self._commits.stop()
            self._commits = None

    # the tail

    async def _follow(self) -> None:
        pause_ms = REDIS_BACKOFF_MS_MIN
        while True:
            try:
                await self._read_on()
                pause_ms = REDIS_BACKOFF_MS_MIN
            except RedisFailure as error:
                log.debug("the metadata could not be read on", reason=str(error))
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)

    async def _read_on(self) -> None:
        try:
            if entries := await self._stream.wait(self._at, REDIS_METADATA_BLOCK_MS):
                if self._commits is not None:
                    await self._commits.durable(entries[-1].index)
                self._hand_on(entries)
            else:
                self._check_head(await self._stream.head())
        except LogReplaced:
            await self._start_over()

    def _check_head(self, head: Position) -> None:
        """Raises LogReplaced where the log lost what was read, which no new entry tells."""
        if self._at.is_beyond(head):
            raise LogReplaced

    def _hand_on(self, entries: Sequence[Entry]) -> None:
        commits, held, decided = self._commits, self._lease.held, self._lease.decided
        if commits is not None and any(commits.is_foreign(entry.index, entry.events) for entry in entries):
            self._lease.drop("Redis has another log than this broker decided on")
        elif held is not None and decided is not None:
            last = entries[-1]
            if last.index > decided.index and int(last.token) != held.token:  # this broker has slept
                self._lease.drop("another broker has appended to the log")
        behind, committed = self._at.index, list[Committed]()
        for entry in entries:
            committed.append(Committed(entry.index, int(entry.token), entry.events, behind))
            behind = entry.index
        self._at = Position(entries[-1].index, entries[-1].chain)
        self._tail.apply(committed)

    async def _start_over(self) -> None:
        """Take the state that Redis has: this broker is far behind, or Redis lost entries. In that case a controller is
        awaited for a while, who goes on at a higher index."""
        was, head = self._at, await self._stream.head()
        if was.is_beyond(head) and self._is_to_wait(head):
            return
        found = await self._stream.recover()
        if self._commits is not None or self._lease.decided != found.at:
            self._lease.drop("the log in Redis is another than this broker decided on")
        self._check_is_there(found.image.cluster_id)
        self._at, self._ahead_since = found.at, None
        self._tail.restore(found.image)

    def _is_to_wait(self, head: Position) -> bool:
        """Redis lacks entries that this broker has read. Raises StorageFailure where it lacks all of them."""
        now = asyncio.get_running_loop().time()
        if self._ahead_since is None:
            self._ahead_since = now
            log.error(
                "Redis has lost committed changes of the metadata, as after a failover: they are undone",
                from_index=self._at.index,
                to_index=head.index,
            )
        self._lease.drop("Redis has lost entries of the log that this broker decided on")
        self._check_is_there(self._tail.image.cluster_id if head.index else "")
        return now < self._ahead_since + REDIS_METADATA_AHEAD_MS / 1000

    def _check_is_there(self, cluster_id: str) -> None:
        if not cluster_id and self._tail.image.cluster_id:
            raise StorageFailure(
                "Redis has lost the cluster's metadata, every topic with it: restore the keys from a backup, or start "
                "the brokers again to begin a new cluster."
            )

    # snapshots

    def on_applied(self) -> None:
        self._changed()
        due = self._tail.events_applied - self._events_in_snapshot >= METADATA_EVENTS_PER_SNAPSHOT
        idle = self._snapshot is None or self._snapshot.done()
        decided = self._lease.decided
        # Before that, the image may hold entries that Redis has lost.
        knows_all = decided is not None and self._tail.image.index >= decided.index
        if due and idle and knows_all and self.holds:
            self._events_in_snapshot = self._tail.events_applied
            self._snapshot = asyncio.get_running_loop().create_task(self._write_snapshot())
            self._snapshot.add_done_callback(self._on_end)

    async def _write_snapshot(self) -> None:
        image, lease = self._tail.image, self._lease.held
        if lease is None:
            return
        try:
            parts = await asyncio.to_thread(parts_of, image)
            for number, part in enumerate(parts):
                call = self._functions.snapshot_part(lease, image.index, number, part)
                if (await self._commands.run(call)).status is not Status.DONE:
                    return
            keep_from = max(1, image.index + 1 - REDIS_METADATA_KEPT_ENTRIES)
            answer = await self._commands.run(self._functions.snapshot(lease, image.index, len(parts), keep_from))
            log.info("the metadata's snapshot is in Redis", index=image.index, parts=len(parts), answer=answer.status)
        except HeadraceError as error:
            log.info("the metadata's snapshot is put off", reason=str(error))


def _seen(look: asyncio.Task[int]) -> None:
    """Its callers may all be gone by the time that it fails."""
    if not look.cancelled():
        look.exception()
