"""The native road runs out of memory in the middle of an append, wherever it asks for some.

Then the batch is in the log or not, and the next life knows which, and the same records never stand there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from random import Random
from typing import Any, cast

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.ports import Buffer
from headrace.broker.partitions.hot import KINDS
from headrace.broker.partitions.logs.opening import recover_producers
from headrace.broker.partitions.partition import Partition
from headrace.native import ROAD, Native
from headrace.replica.producers import ACCEPT, Duplicate
from headrace.storage.engine.appending import Appended
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.journal.journal import Journal
from headrace.storage.log.partition import LocalLog
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.batches import iterate_headers, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.__main__ import silent
from tools.partition_fuzz.batches import Bodies, Body, made
from tools.partition_fuzz.choosing import settings_of
from tools.partition_fuzz.observed import seen_of
from tools.partition_fuzz.world import IDENTITY, JOURNAL, KEY, ROOT, Clock, InlineLoop, World

memory: Any = pytest.importorskip("_testcapi", reason="this interpreter cannot be made to run out of memory")
EARLIER, PRODUCER = 2, 11
TOPIC = b"\2t"
PRODUCE = cast("Api", api(ApiKey.PRODUCE))
REQUESTS_MAX = 400
"""An append asks for memory less often than this."""
pytestmark = [
    pytest.mark.skipif(ROAD.native is None, reason="the pure road is taken"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def no_memory_at(request: int) -> Iterator[None]:
    """One request for memory from now on fails: the one of this number."""
    memory.set_nomemory(request, request + 1)
    try:
        yield
    finally:
        memory.remove_mem_hooks()


class Outcome(Enum):
    APPENDED = "by the native road"
    UNCHANGED = "not appended, and the partition goes on"
    ENDED = "the partition has ended"
    BY_THE_TWIN = "the native road has failed and the twin appended"
    UNTOLD = "appended, and nobody hears of it"


class Case:
    def __init__(self, native: Native, body: Body, *, fsync: bool, is_watched: bool) -> None:
        self.clock, self.loop = Clock(), InlineLoop()
        settings, self.config = settings_of(Random(3), fsync=fsync, is_narrow=False, replicas=1)
        self.world = world = World(
            5, self.clock, self.loop, native=native, config=self.config, settings=settings, replicas=1, has_journal=True
        )
        self.batches = [made(body, self.clock.ms, (PRODUCER, 0, each)).data for each in range(EARLIER + 2)]
        for batch in self.batches[:EARLIER]:
            world.partition.append_plain(memoryview(batch), needs_isr=True)
            do.flush(world)
        if is_watched:
            do.watch(world, number=0)
            do.park_fetch(world, number=0, left=100_000)
            for _ in range(2):
                do.read_on(world, bytes_max=1 << 20)

    def append(self, request: int) -> Outcome:
        """Append one more, without that memory."""
        partition = self.world.partition
        records, before = memoryview(self.batches[EARLIER]), seen_of(self.world)
        try:
            with no_memory_at(request):
                appended = partition.append_plain(records, needs_isr=True)
        except (MemoryError, RuntimeError, SystemError):
            if partition.availability is not ErrorCode.NONE:
                return Outcome.ENDED
            assert seen_of(self.world) == before, "it goes on as though nothing had been"
            return Outcome.UNCHANGED
        assert isinstance(appended, Appended)
        return Outcome.APPENDED if partition.hot is self.world.counted else Outcome.BY_THE_TWIN

    def append_several(self, request: int) -> Outcome:
        """As `append`, by the call for requests of several batches."""
        topics = [(TOPIC, [(0, memoryview(self.batches[EARLIER]))])]
        return self._serve(request, lambda native, known: native.append_all(7, topics, known, True))

    def append_request(self, request: int) -> Outcome:
        """As `append`, by the call that serves the frame of a request of one batch."""
        part = PartitionProduceData(0, memoryview(self.batches[EARLIER]))
        wanted = ProduceRequest(acks=-1, timeout_ms=9, topic_data=(TopicProduceData("t", partition_data=(part,)),))
        frame = memoryview(b"".join(encode_request_frame(PRODUCE, 9, 7, "x", wanted)))[4:]
        return self._serve(request, lambda native, known: native.produce_one(frame, known))

    def _serve(self, request: int, call: Callable[[Native, dict[tuple[bytes, int], Partition]], Any]) -> Outcome:
        """A failure half-way ends the partition before the call returns, or raises."""
        partition, native = self.world.partition, ROAD.native
        assert native is not None
        partition.hot = hot = native.HotPartition(partition, KINDS)
        known, before = {(TOPIC, 0): partition}, seen_of(self.world)
        end = partition.log.log_end_offset
        try:
            with no_memory_at(request):
                taken = call(native, known)
        except (MemoryError, RuntimeError, SystemError):
            if partition.availability is not ErrorCode.NONE:
                return Outcome.ENDED
            if partition.log.log_end_offset > end:
                return Outcome.UNTOLD
            assert seen_of(self.world) == before, "it goes on as though nothing had been"
            return Outcome.UNCHANGED
        assert partition.availability is ErrorCode.NONE
        if taken is None or (isinstance(taken, list) and taken[0][2] is None):
            assert seen_of(self.world) == before, "it is left to the twin"
            return Outcome.UNCHANGED
        assert (partition.hot, partition.log.log_end_offset) == (hot, end + 1)
        return Outcome.APPENDED

    def restart(self) -> LocalLog:
        """Stop cleanly, as far as that may be, and open the log again."""
        world = self.world
        world.partition.step_down(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not world.log.failed:
            world.partition.snapshot_producers()
        world.log.close(clean=not world.log.failed)
        world.engine.close()
        engine = LocalLogEngine(world.disk, ROOT, journal=Journal(world.disk, ROOT.parent / "journal", KEY, JOURNAL))
        engine.start()
        return engine.open(IDENTITY, self.config)

    def check(self, log: LocalLog) -> None:
        found, again = read(log), parse_header(self.batches[EARLIER])
        verdict = recover_producers(log, self.clock.ms).check(again)
        if len(found) > EARLIER:
            assert isinstance(verdict, Duplicate), "it is there, and would be appended once more"
        else:
            assert verdict is ACCEPT, "it is not there, and would never be appended"
        for batch in self.batches[len(found) :]:
            log.append(batch, [(0, parse_header(batch))], leader_epoch=LeaderEpoch(1), now_ms=self.clock.ms)
        assert read(log) == [(each, each) for each in range(len(self.batches))], "each stands there once, and is read"
        log.close()


def read(log: LocalLog) -> list[tuple[int, int]]:
    """Offsets and sequences."""
    found: list[tuple[int, int]] = []
    at = log.log_start_offset
    while at < log.log_end_offset:
        data: Buffer = bytes(log.read(at, 1 << 20, log.log_end_offset, at_least_one=True))
        assert data, "there is more"
        for _, header in iterate_headers(data):
            found.append((header.base_offset, header.base_sequence))
            at = Offset(header.next_offset)
    return found


@pytest.mark.parametrize(
    "append", [Case.append, Case.append_request, Case.append_several], ids=["alone", "by a request", "among several"]
)
@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("fsync", [True, False])
def test_no_record_is_lost_or_doubled_without_memory(
    fsync: bool, is_watched: bool, append: Callable[[Case, int], Outcome]
) -> None:
    native = ROAD.native
    assert native is not None
    [body, *_] = Bodies(Random(1), native).single
    found: list[Outcome] = []
    with silent():
        for request in range(REQUESTS_MAX):
            case = Case(native, body, fsync=fsync, is_watched=is_watched)
            found.append(append(case, request))
            if found[-1] is not Outcome.APPENDED:
                case.check(case.restart())
            case.loop.close()
            if found[-6:] == [Outcome.APPENDED] * 6:
                break
        else:
            raise AssertionError("it asks for more memory")
    assert found.count(Outcome.ENDED) > 10
    assert Outcome.UNCHANGED in found, "the partition goes on where it was only looked at"
    last_look = max(at for at, each in enumerate(found) if each in (Outcome.UNCHANGED, Outcome.BY_THE_TWIN))
    assert Outcome.ENDED not in found[:last_look], "nothing is changed before all is looked at"
