"""Of the runs with tables (`--part tables`): beside the others a compacted topic of few keys that is exported, and
judged by what it is for.

Its log is cleaned behind its history, its history by merges that somebody asks for, and both under the same faults as
all else. Promises in one line each, at any time that both can be read: whoever reads the log as brokers give it, and
whoever reads the store and goes on in the log where the mirror ends, finds of each key the last record that was
acknowledged, or one behind it; none finds a key that was deleted; and where nothing is written they find the same.

All of it draws from a chance of its own, so that runs without it are as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex
from headrace.sim.client import Client, Lost
from headrace.sim.clock import BORN_MS
from headrace.sim.cluster.asking import asked
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.moves.store import Shelf, SimStore
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.storage.tier.reader import DamagedHistory, Store
from headrace.wire.apis import ApiKey
from headrace.wire.batches import check_batch, decode_records, encode_batch, iterate_headers
from headrace.wire.durable import MERGE, encode_request
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record

NAME: Final = "table"
CLEANING: Final = {"log.cleaner.backoff.ms": "100"}
KEYS: Final = 5
AGE: Final = 30
"""Records after which other keys are written: what became of the old ones then lies far behind."""
DELETES: Final = 0.4
MERGES: Final = 0.08
LOOKS: Final = 0.04
"""Of the steps, at how many history is compacted, and at how many all is read."""
NEVER_MS: Final = 1 << 50
"""delete.retention.ms. With less, who reads, or copies, for longer than that may miss a tombstone, as on Kafka."""
THINK_SECONDS: Final = (0.02, 0.1)
TRIES_MAX: Final = 200
"""Answers until a read is given up."""
LOOKS_MAX: Final = 20
LATEST: Final = -1
EARLIEST: Final = -2


class Written(NamedTuple):
    """A record; its offset is -1 where nobody said it."""

    offset: int
    key: bytes
    value: bytes | None


class Table:
    """See the module."""

    def __init__(self, world: ClusterWorld, *, is_on: bool) -> None:
        chance = self._chance = world.chance(NAME)
        self._world = world
        self.is_on = is_on
        self._replicas = chance.choice((2, 3))
        self._think = chance.choice(THINK_SECONDS)
        self._acked: list[Written] = []
        self._doubted: list[Written] = []
        self._numbers = 0
        self.reads = self.lacking = 0
        """Reads that were judged; offsets that these lacked."""

    def join(self, hosts: Sequence[Host], store: SimStore) -> None:
        """Take part in a run."""
        self._hosts, self._store = hosts, store

    def topic(self) -> CreatableTopic:
        """As it is to be made."""
        configs = {
            "cleanup.policy": "compact",
            "durable.compacted.enable": "true",
            "durable.enable": "true",
            "min.insync.replicas": "1",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": str(NEVER_MS),
            "segment.bytes": "1024",
            "durable.export.max.lag.ms": "100",
            "message.timestamp.after.max.ms": str(1 << 60),  # clocks jump
        }
        wanted = tuple(CreatableTopicConfig(*each) for each in configs.items())
        replicas = min(self._replicas, len(self._hosts))
        return CreatableTopic(NAME, num_partitions=1, replication_factor=replicas, configs=wanted)

    def made(self, key: PartitionKey) -> None:
        """It is."""
        self._topic_id = key.topic_id
        self._client: Client | None = None

    # what happens to it

    async def run(self) -> None:
        """Until the world winds down."""
        while not self._world.winding_down:
            roll = self._chance.random()
            if roll < MERGES:
                await self._merge()
            elif roll < MERGES + LOOKS:
                await self._look(TRIES_MAX // 10)
            else:
                await self._write()
            await asyncio.sleep(self._chance.random() * self._think)
        await self._merge()

    async def _write(self) -> None:
        self._numbers += 1
        age = (self._numbers + self._chance.randrange(AGE)) // AGE
        key = b"key %d of %d" % (self._chance.randrange(KEYS), age)
        value = None
        if self._chance.random() >= DELETES:
            value = b"%d/" % self._numbers + b"." * self._chance.randrange(300)
        batch = encode_batch([Record(0, BORN_MS + int(self._world.loop.time() * 1000), key, value)])
        data = (PartitionProduceData(index=0, records=bytes(batch)),)
        request = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=(TopicProduceData(name=NAME, partition_data=data),)
        )
        answer = await self._asked(ApiKey.PRODUCE, 9, request)
        told = None if answer is None else answer.responses[0].partition_responses[0]
        if told is not None and told.error_code == ErrorCode.NONE:
            self._acked.append(Written(told.base_offset, key, value))
            return
        self._doubted.append(Written(-1, key, value))
        self._elsewhere()

    async def _merge(self) -> None:
        wish = {"op": MERGE, "id": f"{NAME} {self._numbers}", "topic_id": str(self._topic_id), "partition": None}
        frame = encode_request({**wish, "execute": True})
        await asyncio.gather(*(asked(address_of(host.node), frame) for host in self._hosts))

    async def _asked(self, api: ApiKey, version: int, request: Any) -> Any:
        """The answer of who is taken for the leader; None: there is none."""
        if self._client is None:
            self._client = Client(NAME, (address_of(self._chance.choice(self._hosts).node), PORT))
        try:
            return await self._client.call(api, version, request)
        except Lost:
            self._elsewhere()
            return None

    def _elsewhere(self) -> None:
        """Another broker is asked next."""
        if self._client is not None:
            self._client.close()
        self._client = None

    # what is read of it

    async def check(self) -> None:
        """All of it, twice: nothing breaks any more, and nothing is written."""
        both = None
        for _ in range(LOOKS_MAX):  # what was behind the mirror may have become history's by the time it is read
            if (both := await self._look(TRIES_MAX)) is not None:
                break
            await asyncio.sleep(0.5)
        if both is None:
            self._world.problem("table-unread", f"not in {LOOKS_MAX} looks")
        elif _table(both[0]) != _table(both[1]):
            text = f"the log has {_named(both[0])}, the store with what is behind it {_named(both[1])}"
            self._world.problem("table-apart", text)
        self._elsewhere()

    async def _look(self, tries: int) -> tuple[list[Written], list[Written]] | None:
        """By brokers, and by the store and brokers; None: it cannot be read now."""
        acked, stored = list(self._acked), self._stored()
        if stored is None:
            return None
        history, end = stored
        behind = await self._read(end, tries)
        whole = await self._read(None, tries)
        for what, found in (("the store", None if behind is None else [*history, *behind]), ("brokers", whole)):
            if found is not None:
                self._judge(what, acked, found)
        return None if behind is None or whole is None else (whole, [*history, *behind])

    def _stored(self) -> tuple[list[Written], int] | None:
        """What the store has, and where the mirror ends; None: it is being written."""
        store: Any = Store(Shelf(self._store))  # type: ignore[arg-type]  # of what a reader asks for it has all
        try:
            topic = store.topic(str(self._topic_id))
            catalog = store.catalog(topic, PartitionIndex(0))
            batches = store.batches(topic, PartitionIndex(0), catalog.readable_start, catalog.next_offset)
            found = [each for batch, _ in batches for each in _records(bytes(batch), catalog.readable_start)]
            return found, int(catalog.next_offset)
        except UsageError:
            return [], 0
        except DamagedHistory:
            return None

    async def _read(self, start: int | None, tries: int) -> list[Written] | None:
        """From there, or the earliest, to the end that a leader tells; None: it could not be read."""
        end = await self._bound(LATEST, tries)
        at = await self._bound(EARLIEST, tries) if start is None else start
        if end is None or at is None:
            return None
        found: list[Written] = []
        for _ in range(tries):
            if at >= end:
                return found
            asked_for = FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=10_000)
            topics = (FetchTopic(topic=NAME, partitions=(asked_for,)),)
            answer = await self._asked(
                ApiKey.FETCH, 12, FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=40_000, topics=topics)
            )
            told = None if answer is None else answer.responses[0].partitions[0]
            if told is not None and error_of(told.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE:
                start_now = await self._bound(EARLIEST, tries)
                if start is not None or start_now is None or start_now <= at:
                    return None  # by the time it was read it was history's
                at, found = start_now, []
            elif told is None or told.error_code or not told.records:
                self._elsewhere()
                await asyncio.sleep(0.1)
            else:
                found += _records(bytes(told.records), at)
                at = max(at, *(header.next_offset for _, header in iterate_headers(bytes(told.records))))
        return None

    async def _bound(self, which: int, tries: int) -> int | None:
        request = ListOffsetsRequest(
            replica_id=-1, topics=(ListOffsetsTopic(name=NAME, partitions=(ListOffsetsPartition(0, -1, which),)),)
        )
        for _ in range(tries):
            answer = await self._asked(ApiKey.LIST_OFFSETS, 7, request)
            told = None if answer is None else answer.topics[0].partitions[0]
            if told is not None and told.error_code == ErrorCode.NONE:
                offset: int = told.offset
                return offset
            self._elsewhere()
            await asyncio.sleep(0.1)
        return None

    def _judge(self, what: str, acked: Sequence[Written], found: Sequence[Written]) -> None:
        """`acked` before anything was read."""
        self.reads += 1
        self.lacking += max(0, len(acked) - len(found))
        last = {each.key: each for each in found}
        known = {each.offset: each for each in self._acked}
        for each in found:
            if known.get(each.offset, each) != each:
                self._world.problem("table-differs", f"{what} has {_named([each])} at {each.offset}")
        due = {each.key: each for each in sorted(acked, key=lambda each: each.offset)}
        for key, wanted in due.items():
            there = last.get(key)
            if there is not None and there.offset >= wanted.offset:
                continue
            if wanted.value is None and there is not None and there.value is not None:
                text = f"{what} has {_named([there])} of {there.offset}, deleted at {wanted.offset}"
                self._world.problem("deleted-key-back", text)
            if wanted.value is not None and not self._may_be_deleted(wanted):
                text = f"{what} has {'nothing' if there is None else there.offset} of {key!r}"
                self._world.problem("last-value-lost", f"{text}, whose last record is {wanted.offset}")

    def _may_be_deleted(self, wanted: Written) -> bool:
        """By a tombstone that was acknowledged since, or of which nobody knows."""
        later = (each for each in self._acked if each.offset > wanted.offset)
        return any(each.key == wanted.key and each.value is None for each in (*later, *self._doubted))


def _records(data: bytes, start: int) -> Iterator[Written]:
    for at, header in iterate_headers(data):
        check_batch(data, at, at + header.size, compacted=True)
        for record in decode_records(data[at : at + header.size]) if header.count else ():
            if record.offset >= start and record.key is not None:
                yield Written(record.offset, record.key, record.value)


def _table(found: Sequence[Written]) -> dict[bytes, bytes]:
    last = {each.key: each.value for each in found}
    return {key: value for key, value in last.items() if value is not None}


def _named(found: Sequence[Written]) -> str:
    return ", ".join(f"{each.key!r} {(each.value or b'deleted')[:8]!r} at {each.offset}" for each in found)
