"""Faults that the simulator found in the broker, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from headrace.base.ids import DirectoryId, LeaderEpoch, PartitionIndex, TopicId
from headrace.broker.home.identity import claim
from headrace.raft.messages import Entry, HardState
from headrace.sim.disk import Mount, SimDisk
from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process, ProcessDied
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.partition import LocalLog
from headrace.storage.raftlog.raft_log import open_commit_log
from headrace.wire.batches import check_batches, encode_batch
from headrace.wire.records import Record

T = TypeVar("T")

DATA = Path("/srv/data")
IDENTITY = LogIdentity(
    topic_name="orders",
    topic_id=TopicId(uuid.UUID(int=1)),
    partition=PartitionIndex(0),
    directory_id=DirectoryId(uuid.UUID(int=2)),
)
BATCH = encode_batch([Record(0, 1, b"key", b"v" * 700)])
SEEDS = range(25)


class Machine:
    """A disk and one process on it after the other."""

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop(random.Random(seed))
        self.disk = SimDisk(self.loop, random.Random(seed))
        self.disk.make_durable_directory(DATA.parent)
        self.boot()

    def boot(self) -> None:
        self.process = Process("broker")
        self.mount = Mount(self.disk, self.process)

    def kill(self) -> None:
        self.loop.kill(self.process)
        self.boot()

    def power_cut(self) -> None:
        self.loop.kill(self.process)
        self.disk.power_cut()
        self.boot()

    def work(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return await self.loop.run_in_executor(None, function)

        return self.loop.run_until_complete(self.loop.spawn(self.process, call()))

    def dies_in(self, function: Callable[[], object], operation: int) -> None:
        """Run it on the loop and be killed in the middle of its so-manieth disk operation."""
        self.disk.trigger(operation, partial(self.loop.kill, self.process))
        with pytest.raises(ProcessDied):
            function()
        self.disk.disarm()
        self.boot()

    # a log

    def open_log(self) -> LocalLog:
        engine = LocalLogEngine(self.mount, DATA.parent / "logs")
        self.work(engine.start)
        return self.work(lambda: engine.open(IDENTITY, LogConfig(segment_bytes=1000)))

    def append(self, log: LocalLog) -> None:
        log.append(BATCH, check_batches(BATCH), leader_epoch=LeaderEpoch(1), now_ms=1)

    def flush(self, log: LocalLog) -> None:
        ticket = log.begin_flush()
        assert ticket is not None
        self.work(ticket.sync)
        log.finish_flush(ticket)

    def close(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(1))
        self.loop.workers.close()
        self.loop.close()


@pytest.fixture(params=SEEDS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = Machine(request.param)
    yield machine
    machine.close()


def test_a_first_start_that_was_killed_leaves_a_directory_that_the_next_makes_durable(machine: Machine) -> None:
    """It was there, so its name was never synced, and the power cut took everything."""
    machine.mount.make_directory(DATA)
    machine.kill()
    machine.work(lambda: claim(machine.mount, DATA))
    machine.power_cut()
    assert machine.mount.is_directory(DATA)


def test_a_segment_that_was_only_begun_before_a_kill_is_durable_once_it_is_flushed(machine: Machine) -> None:
    """Its empty file was there, so its name counted as durable."""
    log = machine.open_log()
    machine.append(log)
    machine.flush(log)
    machine.work(log.close)
    machine.kill()
    log = machine.open_log()
    machine.dies_in(lambda: machine.append(log), operation=2)
    log = machine.open_log()
    machine.append(log)
    machine.flush(log)
    end = log.flushed_end
    machine.power_cut()
    assert machine.open_log().log_end_offset == end


@pytest.mark.parametrize("failing", range(14))
def test_a_failed_sync_hides_nothing_from_the_next_start(failing: int) -> None:
    """The stamp passed for clean in the page cache and was lost later; the checkpoint outlived what it vouched for."""
    for seed in SEEDS:
        machine = Machine(seed)
        log = machine.open_log()
        for _ in range(3):
            machine.append(log)
        ticket = log.begin_flush()
        assert ticket is not None
        machine.disk.fail_syncs(1, after=failing)
        try:
            machine.work(ticket.sync)
            log.finish_flush(ticket)
        except OSError:
            log.fail_flush(ticket)
        machine.disk.heal()
        machine.kill()
        log = machine.open_log()
        machine.append(log)
        machine.flush(log)
        end = log.flushed_end
        machine.power_cut()
        log = machine.open_log()
        assert log.log_end_offset == end
        assert [header.base_offset for header, _ in log.batches_from(log.log_start_offset)] == list(range(end))
        machine.close()


def test_a_commit_log_believes_no_entry_that_a_failed_sync_left_in_the_page_cache(machine: Machine) -> None:
    """A restart found it, synced nothing, went on behind it; after a power cut there was a hole."""
    directory = DATA.parent / "metadata"

    def entry(index: int) -> Entry:
        return Entry(term=1, index=index, data=b"x" * 2000)

    log, _ = machine.work(lambda: open_commit_log(machine.mount, directory))
    machine.work(lambda: log.append(HardState(), [entry(1)]))
    machine.disk.fail_syncs(1)
    with pytest.raises(Exception, match="cannot be written"):
        machine.work(lambda: log.append(None, [entry(2)]))
    machine.disk.heal()
    machine.kill()
    log, recovery = machine.work(lambda: open_commit_log(machine.mount, directory))
    machine.work(lambda: log.append(None, [entry(recovery.last_index + 1)]))
    machine.power_cut()
    _, found = machine.work(lambda: open_commit_log(machine.mount, directory))
    assert found.last_index == recovery.last_index + 1
