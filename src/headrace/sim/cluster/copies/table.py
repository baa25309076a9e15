"""A compacted topic of few keys for runs with tables (`--part tables`): it is exported, and judged by its last values.

Its log is cleaned behind its history, and its history by merges on request. It has the faults of the run, and some of
its own (`hazards`). All of it draws from its own source of randomness, so that runs without it do not change.

Promises, whenever both can be read:
- For each key, a reader finds the last acknowledged record, or a later one. One reader reads the log at brokers. The
  other reads the store, and continues in the log at the end of the mirror.
- Neither finds a deleted key.
- While nothing is written, both find the same.

The `ledger` knows which records may be gone all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.segments import PartitionCatalog
from headrace.metadata.values import PartitionImage
from headrace.sim.clock import BORN_MS
from headrace.sim.cluster.asking import asked
from headrace.sim.cluster.copies.asker import Asker
from headrace.sim.cluster.copies.hazards import Hazards
from headrace.sim.cluster.copies.ledger import Ledger, Written
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.moves.store import Shelf, SimStore, batches_in
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.records.media import SUFFIX, directory_of
from headrace.sim.cluster.world import ClusterWorld, address_of
from headrace.sim.history import PartitionKey
from headrace.sim.nodes import FileNode
from headrace.storage.tier.reader import DamagedHistory, Store
from headrace.wire.apis import ApiKey
from headrace.wire.batches import BatchHeader, check_batch, decode_records, encode_batch, iterate_headers
from headrace.wire.durable import MERGE, encode_request
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record

NAME: Final = "table"
APIS: Final = (ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DELETE_RECORDS)
"""Further APIs that it uses."""
CLEANING: Final = {"log.cleaner.backoff.ms": "100"}
KEYS: Final = 5
AGE: Final = 30
"""Records after which other keys are written, so that the old keys' records soon lie far behind."""
DELETES: Final = 0.4
MERGES: Final = 0.08
LOOKS: Final = 0.04
"""Share of the steps after which history is compacted, and after which everything is read."""
THINK_SECONDS: Final = (0.02, 0.1)
TRIES_MAX: Final = 200
"""Answers until a read is given up."""
NOTHING_MAX: Final = 20
"""Empty fetches below the end before it is believed that nothing is there."""
LOOKS_MAX: Final = 20
LATEST: Final = -1
EARLIEST: Final = -2


class Table:
    """The table, as the module says."""

    def __init__(self, world: ClusterWorld) -> None:
        chance = self._chance = world.chance(NAME)
        self._world = world
        self.hazards = Hazards(world, NAME, chance)
        self.ledger = Ledger(world.problem)
        self._think = chance.choice(THINK_SECONDS)
        self._numbers = 0
        self._unclean = -1
        """The leader epoch of its last unclean election."""
        self._since = -1
        """The leader epoch in which the present read began."""
        self._image = EMPTY_IMAGE
        self.cleanings = 0
        """Number of compacted logs, of any topic."""
        self.unclean_elections = self.gave_way = self.parted = 0
        self.key: PartitionKey | None = None
        """Set once the topic exists."""

    def join(self, hosts: Sequence[Host], store: SimStore, judge: RecordsJudge) -> None:
        """Take part in a run. `judge` knows the images that brokers show."""
        self._hosts, self._store, self._judge = hosts, store, judge
        self._asker = Asker(NAME, hosts, self._chance)

    def topic(self) -> CreatableTopic:
        """The topic to create."""
        configs = {
            "durable.compacted.enable": "true",
            "durable.enable": "true",
            "min.insync.replicas": "1",
            "min.cleanable.dirty.ratio": "0",
            "segment.bytes": "1024",
            "durable.export.max.lag.ms": "100",
            "message.timestamp.after.max.ms": str(1 << 60),  # clocks jump
            **self.hazards.configs(),
        }
        wanted = tuple(CreatableTopicConfig(*each) for each in configs.items())
        replicas = min(self.hazards.replicas, len(self._hosts))
        return CreatableTopic(NAME, num_partitions=1, replication_factor=replicas, configs=wanted)

    def made(self, key: PartitionKey) -> None:
        """Called when the topic exists."""
        self.key = key
        self._topic_id = key.topic_id
        self.hazards.join(
            key,
            self._hosts,
            state=lambda: self.state,
            end=lambda: self.ledger.end,
            lost=self._on_directory_lost,
            outruns=self._on_outrun,
        )

    # facts about it

    @property
    def state(self) -> PartitionImage | None:
        """The newest state that any broker showed."""
        return self._image.partition_info(NAME, 0)

    @property
    def catalog(self) -> PartitionCatalog:
        """The newest catalog that any broker showed."""
        assert self.key is not None
        return self._image.durable(TopicPartition(TopicId(self.key.topic_id), PartitionIndex(0)))

    def on_image(self, image: MetadataImage) -> None:
        """Called with each image that a broker shows."""
        if image.index <= self._image.index or self.key is None:
            return
        self._image = image
        state, start = self.state, self.catalog.log_start_offset
        if self.hazards.ages:
            self.ledger.gone_below = max(start, self.ledger.gone_below)
        if state is not None and state.is_unclean and state.leader_epoch > self._unclean:
            self._unclean = state.leader_epoch
            self._on_unclean(state.leader)
        self.hazards.on_image(image)

    def _on_unclean(self, leader: int) -> None:
        """History stays, unless the leader's log is as long as history and differs from it."""
        self.unclean_elections += 1
        frontier, log = self.catalog.next_offset, self._log_of(leader)
        history = self._history()
        epochs = {at: each.leader_epoch for each in history for at in range(each.base_offset, each.next_offset)}
        differs = any(epochs.get(each.base_offset, each.leader_epoch) != each.leader_epoch for each in log)
        end = log[-1].next_offset if log else 0
        parted = differs and end >= frontier
        self.parted += parted
        self.gave_way += end < frontier
        self._world.tell(f"{leader} leads the table uncleanly, its log ends at {end}, history at {frontier}, {parted=}")
        self.ledger.lose(frontier, parted=parted)

    def _log_of(self, node: int) -> list[BatchHeader]:
        """The batches in its files, synced or not."""
        host = next(host for host in self._hosts if host.node == node)
        directory = directory_of(host.disk, f"{NAME}-0", cached=True)
        names = {} if directory is None else directory.names
        files = (names[name] for name in sorted(names) if name.endswith(SUFFIX))
        return [header for file in files if isinstance(file, FileNode) for header in _whole(bytes(file.data))]

    def _history(self) -> list[BatchHeader]:
        """The batches of history as the newest catalog names them."""
        named = (entry.descriptor for entry in self.catalog)
        held = ((each, self._store.objects.get(each.key)) for each in named)
        return [header for each, stored in held if stored for header in _whole(batches_in(stored.data, each))]

    def _on_directory_lost(self) -> None:
        self.ledger.lose(self.catalog.next_offset, parted=False)

    def _on_outrun(self) -> None:
        self.ledger.outruns = True

    def _counts(self, node: int, since: int) -> bool:
        """Whether this broker knows the leader since that epoch. A deposed one may have fewer records, or another
        log."""
        if since < 0:
            return True
        assert self.key is not None
        shown = self._judge.glimpse(self.key, node).shown
        return shown is not None and shown.leader_epoch >= since

    # faults and load

    async def run(self) -> None:
        """Work until the world winds down."""
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
        losses, counts = self.ledger.losses, self._counts(self._asker.node, self._unclean)
        answer = await self._asker.ask(ApiKey.PRODUCE, 9, request)
        answered = None if answer is None else answer.responses[0].partition_responses[0]
        if answered is None or answered.error_code:
            self.ledger.doubt(Written(-1, key, value))
            self._asker.elsewhere()
        elif counts and losses == self.ledger.losses:
            self.ledger.acked(Written(answered.base_offset, key, value))
        else:
            self.ledger.doubt(Written(answered.base_offset, key, value))

    async def _merge(self) -> None:
        wish = {"op": MERGE, "id": f"{NAME} {self._numbers}", "topic_id": str(self._topic_id), "partition": None}
        frame = encode_request({**wish, "execute": True})
        await asyncio.gather(*(asked(address_of(host.node), frame) for host in self._hosts))

    # reads

    async def check(self) -> None:
        """Read everything twice, when faults and writes have ended."""
        for _ in range(LOOKS_MAX):  # records behind the mirror may be in history by the time they are read
            mark = self._mark()
            if (both := await self._look(TRIES_MAX)) is not None and mark == self._mark():
                self.ledger.compare(*both)
                break
            await asyncio.sleep(0.5)
        else:
            self._world.problem("table-unread", f"not in {LOOKS_MAX} looks")
        self._asker.elsewhere()

    def _mark(self) -> tuple[int, int, str]:
        """While this value is unchanged, nothing of it is compacted, exported or lost."""
        return self.ledger.losses, self.cleanings, self.catalog.head

    async def _look(self, tries: int) -> tuple[list[Written], list[Written]] | None:
        """Read by brokers, and by the store and brokers; None: it cannot be read now."""
        before, stored, mark = self.ledger.now(), self._stored(), self._mark()
        self._since = -1 if self.state is None else self.state.leader_epoch
        if stored is None:
            return None
        history, end = stored
        behind = await self._read(history, end, tries)
        whole = await self._read([], None, tries)
        if self.ledger.losses != mark[0]:
            return None
        is_told_all = not self.hazards.forgets or mark == self._mark()
        floors = {"the store": 0, "brokers": self.ledger.parted_below}
        for what, found in (("the store", behind), ("brokers", whole)):
            if found is not None:
                self.ledger.judge(what, before, found, floor=floors[what], whole=is_told_all)
        return None if behind is None or whole is None else (whole, behind)

    def _stored(self) -> tuple[list[Written], int] | None:
        """The records in the store, and the end of the mirror; None: it is being written."""
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

    async def _read(self, before: Sequence[Written], start: int | None, tries: int) -> list[Written] | None:
        """`before`, and the records from `start` (or the earliest offset) to the leader's end; None: they could not be
        read."""
        end = await self._bound(LATEST, tries)
        at = await self._bound(EARLIEST, tries) if start is None else start
        if end is None or at is None:
            return None
        found, nothing = list(before), 0
        for _ in range(tries):
            if at >= end:
                return found
            asked_for = FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=10_000)
            topics = (FetchTopic(topic=NAME, partitions=(asked_for,)),)
            counts = self._counts(self._asker.node, self._since)
            answer = await self._asker.ask(
                ApiKey.FETCH, 12, FetchRequest(max_wait_ms=300, min_bytes=1, max_bytes=40_000, topics=topics)
            )
            answered = answer.responses[0].partitions[0] if counts and answer is not None else None
            if answered is not None and error_of(answered.error_code) is ErrorCode.OFFSET_OUT_OF_RANGE:
                start_now = await self._bound(EARLIEST, tries)
                if start_now is None or start_now <= at or (start is not None and not self.ledger.outruns):
                    return None  # the records became history's before they were read
                at = start_now  # unless records age, compaction has left nothing up to there that it had to keep
                found = [] if start is None or self.hazards.ages else found
            elif answered is not None and not (answered.error_code or answered.records) and nothing < NOTHING_MAX:
                nothing += 1
                await asyncio.sleep(0.1)
            elif answered is not None and not (answered.error_code or answered.records):
                return found  # a cleaning had left nothing and the log was cut; the judge checks that no key is missing
            elif answered is None or answered.error_code or not answered.records:
                self._asker.elsewhere()
                await asyncio.sleep(0.1)
            else:
                found += _records(bytes(answered.records), at)
                at = max(at, *(header.next_offset for _, header in iterate_headers(bytes(answered.records))))
        return None

    async def _bound(self, which: int, tries: int) -> int | None:
        request = ListOffsetsRequest(
            replica_id=-1, topics=(ListOffsetsTopic(name=NAME, partitions=(ListOffsetsPartition(0, -1, which),)),)
        )
        for _ in range(tries):
            counts = self._counts(self._asker.node, self._since)
            answer = await self._asker.ask(ApiKey.LIST_OFFSETS, 7, request)
            answered = answer.topics[0].partitions[0] if counts and answer is not None else None
            if answered is not None and answered.error_code == ErrorCode.NONE:
                offset: int = answered.offset
                if which == EARLIEST and self.hazards.ages:
                    self.ledger.gone_below = max(offset, self.ledger.gone_below)
                return offset
            self._asker.elsewhere()
            await asyncio.sleep(0.1)
        return None

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        return {
            "cleanings": self.cleanings,
            "reads of a table": self.ledger.reads,
            "records that these lacked": self.ledger.lacking,
            "unclean elections of it": self.unclean_elections,
            "of these below its frontier": self.gave_way,
            "of these with another history than its own": self.parted,
            "tables of which records aged": int(self.hazards.ages and self.ledger.gone_below > 0),
            **self.hazards.figures(),
        }


def _records(data: bytes, start: int) -> Iterator[Written]:
    for at, header in iterate_headers(data):
        check_batch(data, at, at + header.size, compacted=True)
        for record in decode_records(data[at : at + header.size]) if header.count else ():
            if record.offset >= start and record.key is not None:
                yield Written(record.offset, record.key, record.value)


def _whole(data: bytes) -> Iterator[BatchHeader]:
    """The batches up to one that is cut off or damaged."""
    try:
        for at, header in iterate_headers(data):
            check_batch(data, at, at + header.size, compacted=True)
            yield header
    except CorruptData:
        return
