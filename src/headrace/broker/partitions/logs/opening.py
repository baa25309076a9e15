"""Opens the logs of partitions, many at a time: recovery, and the producers that wrote to each.

Promises: a log that cannot be opened keeps no other from being opened. The event loop only waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from headrace.base.errors import CorruptData, HeadraceError, StorageFailure, without_frames
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import LOGS_OPENED_AT_ONCE_MAX
from headrace.base.ports import Clock
from headrace.broker.kit.tasks import in_thread
from headrace.logs import get_logger
from headrace.metadata.moves import StorageStateSealed
from headrace.replica.producers import ProducerStates
from headrace.replica.recovery_start import LOCAL, Anew, LocalLog, Offline, Start, TakeOver
from headrace.replica.sealing import unpacked
from headrace.storage.engine.engines import LogEngine, LogOpening
from headrace.storage.engine.files import LogDirectories
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.transactions import decode_marker

log = get_logger(__name__)


class Wanted(NamedTuple):
    """A log that is to be opened."""

    identity: LogIdentity
    config: LogConfig
    start: Callable[[int | None], Start] = lambda _: LOCAL
    """Decides where it begins (`replica.recovery_start`), by the assignment epoch that is stamped on its directory.
    Called only where that may be another."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    """The epoch in which this broker is to lead it; -1: it is not to."""


class Begun(NamedTuple):
    """A log that was read."""

    opening: LogOpening
    state: StorageStateSealed | None
    """The state that its last owner left, where it is taken over."""
    is_anew: bool = False
    """True: it is a copy of a partition that was handed over. Its directory is stamped so before anything is copied."""


class Opened(NamedTuple):
    """A log, and the producers that wrote to it."""

    log: PartitionLog
    producers: ProducerStates


class Opener:
    """Opens logs of one engine."""

    def __init__(self, engine: LogEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def open_all(self, wanted: Sequence[Wanted]) -> list[Opened | Exception]:
        """Open the logs. They are read one after the other, for that takes the processor; then several at a time wait
        for the disk."""
        begun = await in_thread(lambda: [self._begin(each) for each in wanted])
        waiting = [at for at, each in enumerate(begun) if not isinstance(each, Exception) and each.opening.must_sync]
        at_once = LOGS_OPENED_AT_ONCE_MAX if len(waiting) >= LOGS_OPENED_AT_ONCE_MAX else 1
        slow = [waiting[first::at_once] for first in range(at_once)]
        slow_ones = set(waiting)
        quick = [at for at in range(len(begun)) if at not in slow_ones]
        opened: dict[int, Opened | Exception] = {}

        def finish(share: Sequence[int]) -> None:
            for at in share:
                opened[at] = self._finish(begun[at])

        await asyncio.gather(*(in_thread(partial(finish, share)) for share in [quick, *slow] if share))
        return [opened[at] for at in range(len(begun))]

    async def open_aside(self, wanted: Wanted) -> Opened | Exception:
        """Open an empty log, after the directory under its name is set aside: it is of another disk or assignment."""
        files = self._engine.files
        assert files is not None, "it said that the directory is of another"
        try:
            kept = await in_thread(partial(files.set_aside, wanted.identity))
        except (OSError, HeadraceError) as error:
            return without_frames(error)
        log.warning(
            "a log of another disk or assignment is kept beside, and taken anew from its leader",
            topic=wanted.identity.topic_name,
            partition=wanted.identity.partition,
            kept_in=str(kept),
        )
        (opened,) = await self.open_all([wanted])
        return opened

    def _begin(self, wanted: Wanted) -> Begun | Exception:
        """Read a log's files, in a worker thread."""
        try:
            return self._begin_at(wanted)
        except (OSError, HeadraceError) as error:
            return without_frames(error)

    def _begin_at(self, wanted: Wanted) -> Begun:
        identity, files = wanted.identity, self._engine.files
        begin = partial(self._engine.begin_open, identity, wanted.config, leader_epoch=wanted.leader_epoch)
        if identity.assignment_epoch == 0 or files is None:  # a directory with another's stamp is refused
            return Begun(begin(), None)
        found = files.stamped(identity)
        match wanted.start(None if found is None else found.assignment_epoch):
            case TakeOver(state=state, is_there=is_there):
                if not is_there:
                    _set_aside(files, identity)
                return Begun(begin(start=state.next_offset), state)
            case Anew(offset=offset):
                _set_aside(files, identity)
                return Begun(begin(start=offset), None, is_anew=True)
            case Offline(reason=reason):
                raise StorageFailure(reason)
            case LocalLog():
                return Begun(begin(), None)

    def _finish(self, begun: Begun | Exception) -> Opened | Exception:
        """Recover the log, then the producers' state from its snapshot and the batches behind it, in a worker
        thread."""
        if isinstance(begun, Exception):
            return begun
        try:
            opened = begun.opening.finish()
            if begun.state is not None:
                _take_over(opened, begun.state)
            elif begun.is_anew:  # if nothing were ever appended, it would look lost at the next start
                opened.settle_empty(None)
            try:
                producers = recover_producers(opened, self._clock.now_ms())
            except CorruptData as error:
                log.warning(
                    "a log is examined: its batches cannot be walked", log=opened.identity.name, reason=str(error)
                )
                _examine_all(opened)
                producers = recover_producers(opened, self._clock.now_ms())
        except (OSError, HeadraceError) as error:
            return without_frames(error)
        return Opened(opened, producers)


def _set_aside(files: LogDirectories, identity: LogIdentity) -> None:
    if (kept := files.set_aside(identity)) is not None:
        log.warning("what this broker had of a partition before it was handed over is set aside", kept_in=str(kept))


def _take_over(opened: PartitionLog, state: StorageStateSealed) -> None:
    """Settle a log that is taken over, in a worker thread. Raises StorageFailure, CorruptData."""
    if (opened.log_start_offset, opened.log_end_offset) != (state.next_offset, state.next_offset):
        raise StorageFailure(
            f"The log of {opened.identity.name} is to begin, empty, at {state.next_offset}, and holds "
            f"{opened.log_start_offset} to {opened.log_end_offset}: move it away, and restart the broker."
        )
    opened.settle_empty(unpacked(state.producers))


def _examine_all(partition_log: PartitionLog) -> None:
    """Examine every segment, in a worker thread, before anybody else has the log."""
    if (examinable := partition_log.examining) is None:
        return
    for base in examinable.segments:
        if (examination := examinable.begin_examination(base)) is not None:
            try:
                while not examination.step():
                    pass
            finally:
                examination.close()
            examination.conclude()
            examination.end(done=True)


def recover_producers(partition_log: PartitionLog, now_ms: int, end: Offset = LAST_OFFSET) -> ProducerStates:
    """Return the producers' state as of `end`, or of the log's end. In the latter case, the log learns which
    transactions were aborted behind the snapshot. The times of appends behind the snapshot are unknown: these batches
    count as appended now, so that no producer is forgotten too early. A snapshot from below the log's start is ignored:
    later batches of the same producers may have left the log since."""
    snapshot = partition_log.latest_producer_snapshot(end)
    producers = ProducerStates()
    start = partition_log.log_start_offset
    if snapshot is not None and start <= snapshot[0] <= partition_log.log_end_offset:
        try:
            producers = ProducerStates.restore(snapshot[1])
            start = snapshot[0]
        except CorruptData as error:
            log.warning("producers are rebuilt from the whole log", log=partition_log.identity.name, reason=str(error))
    aborted = partition_log.aborted if end == LAST_OFFSET else None
    if aborted is not None:
        aborted.forget_from(start)
    for header, control in partition_log.batches_from(start, end):
        if header.last_offset >= end:
            break
        base = Offset(header.base_offset)
        if not control:
            producers.on_appended(header, base, now_ms)
            continue
        ended = producers.on_marker(header, decode_marker(control), base, now_ms)
        if ended is not None and ended.is_aborted and aborted is not None:
            aborted.add(ended.aborted)
    return producers
