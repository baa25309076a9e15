"""The writer between the core and the commit log: what it tells as written is durable, whatever was merged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerId
from headrace.broker.cluster.quorum.writer import LogWriter
from headrace.metadata.image import MetadataImage
from headrace.raft.events import Ready
from headrace.raft.messages import Entry, HardState
from headrace.storage.raftlog.raft_log import open_commit_log, read_commit_log
from tests.storage.lossy_disk import LossyDisk

DIRECTORY = Path("/metadata")


class Model:
    """The content of the log after each write, by its number."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.entries: tuple[Entry, ...] = ()
        self.state = HardState()
        self.after: dict[int, tuple[HardState, tuple[Entry, ...]]] = {}

    def ready(self, write: int) -> Ready:
        """One more: entries behind the last, or in place of some; a new term; or both."""
        pick = self.random.random()
        new_state = None
        if pick < 0.4 or self.state.term == 0:
            new_state = self.state = HardState(self.state.term + 1, BrokerId(1))
        follows = len(self.entries)
        if pick < 0.3:
            follows = self.random.randrange(0, len(self.entries) + 1)
        count = self.random.randrange(0 if new_state else 1, 4)
        entries = tuple(
            Entry(self.state.term, index, self.random.randbytes(3)) for index in range(follows + 1, follows + 1 + count)
        )
        if entries:
            self.entries = self.entries[:follows] + entries
        self.after[write] = (self.state, self.entries)
        return Ready(write=write, hard_state=new_state, entries=entries)


@given(st.integers(0, 2**32).map(Random), st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_what_is_told_as_written_is_durable(random: Random, bursts: list[int]) -> None:
    """Some wait while the disk is at work, and go in one write."""

    async def live() -> None:
        disk, model = LossyDisk(random), Model(random)
        log, _ = open_commit_log(disk, DIRECTORY)
        told: list[int] = []
        wrong: list[int] = []
        failures: list[Exception] = []

        def on_written(write: int, image: MetadataImage | None) -> None:
            told.append(write)
            lost = LossyDisk(random)
            for name, inode in disk.directory.durable.items():
                lost.directory.names[name] = inode
                content, inode.content = inode.content, inode.durable
                found = read_commit_log(lost, DIRECTORY)
                inode.content = content
            if (found.hard_state, found.entries) != model.after[write]:
                wrong.append(write)

        writer = LogWriter(log, on_written, failures.append)
        write = 0
        for burst in bursts:
            for _ in range(burst):
                write += 1
                writer.put(model.ready(write))
            if random.random() < 0.6:
                await writer.drained()
            else:
                await asyncio.sleep(0)
        await writer.drained()
        assert not wrong
        assert told == sorted(set(told))
        assert told[-1] == write
        assert failures == []

    asyncio.run(live())


async def test_after_a_failure_nothing_is_written_or_told() -> None:
    disk, model = LossyDisk(Random(1)), Model(Random(1))
    log, _ = open_commit_log(disk, DIRECTORY)
    told: list[int] = []
    failures: list[Exception] = []
    writer = LogWriter(log, lambda write, image: told.append(write), failures.append)
    writer.put(model.ready(1))
    await writer.drained()
    disk.fail_sync = True
    for write in (2, 3, 4):
        writer.put(model.ready(write))
    await writer.drained()
    disk.fail_sync = False
    writer.put(model.ready(5))
    writer.do(lambda: told.append(-1))
    await writer.drained()
    assert told == [1]
    assert [type(failure) for failure in failures] == [StorageFailure]
