"""One client of a transactional id, from InitProducerId until it ends, dies or is fenced.

It behaves as the clients of Kafka do. A request is sent again until its answer is known. A transaction that cannot go
on is aborted. In the old protocol (TV1) a late copy of a request would count for the next transaction. So a client that
has lost an answer takes a new epoch first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.sim.client import Lost
from headrace.sim.clock import BORN_MS
from headrace.sim.cluster.transactions.answers import (
    ABORTABLE,
    AGAIN,
    ELSEWHERE,
    FENCED,
    Abortable,
    Dead,
    Fenced,
    added,
    in_turn,
    offsets_committed,
)
from headrace.sim.cluster.transactions.consumers import Reader, look
from headrace.sim.cluster.transactions.history import UNKNOWN, Partition, Register, Taken, Transaction, Write
from headrace.sim.cluster.transactions.stage import GROUP, INPUT, TRANSACTION, Stage, Ways
from headrace.wire.apis import ApiKey
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.wire.messages.end_txn import EndTxnRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.records import Record

if TYPE_CHECKING:
    from headrace.sim.cluster.transactions.producers import Lane

ABORTS: Final = 0.2
DIES: Final = 0.02
"""At each step."""
HANGS: Final = 0.02
IN_DOUBT_FACTOR: Final = 10.0
"""Both are so much likelier where it does not know whether it has committed."""
THINK_SECONDS_MAX: Final = 0.05
DELIVERY_SECONDS_MAX: Final = 3.0
"""After that the transaction is aborted."""
BATCHES_MAX: Final = 3
RECORDS_MAX: Final = 2
PADDINGS: Final = (0, 0, 300)
TIMEOUTS_MS: Final = (300, 4_500)
BY_ID: Final = 13
"""The version of Produce from which topics go by their ids."""
OLD_PRODUCE: Final = (7, 9, 11)
NEW_PRODUCE: Final = (12, 13)


class Terms(NamedTuple):
    is_new: bool
    """It speaks the new protocol."""
    timeout_ms: int
    transactions: int
    register: Register | None
    """The committed offset that its transactions move."""
    is_last: bool
    """Faults are over: it must commit its last transaction."""
    dies: bool
    """It ends in the middle of that one."""


class Session:
    """The client, as the module says."""

    def __init__(self, stage: Stage, lane: Lane, name: str, terms: Terms) -> None:
        self._stage = stage
        self._world = stage.world
        self._lane = lane
        self.name = name
        self._terms = terms
        self.is_new = terms.is_new
        self._chance = stage.world.chance(f"session {name}")
        self._ways = Ways(stage, name, self._chance)
        self.producer = (-1, -1)
        self._sequences: dict[Partition, int] = {}
        self._is_in_doubt = False
        """A request of this epoch had no answer."""
        self._position: int | None = None
        self._reader: Reader | None = None
        self._reads = 0
        self._current: Transaction | None = None
        self.fenced: int | None = None
        """The moment when another client had its id."""
        self.hangs = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self) -> bool:
        """Work until the terms are met, or it is fenced or dies. Returns whether they are met."""
        try:
            await self._initialise(None)
            left = self._terms.transactions
            while left > 0 and (self._terms.is_last or not self._stage.winding_down):
                is_committed = await self._transact()
                left -= is_committed or not self._terms.is_last
                if self._is_in_doubt and not self.is_new:
                    await self._initialise(self.producer)
                await asyncio.sleep(self._chance.random() * THINK_SECONDS_MAX)
        except (Fenced, Dead) as error:
            self._world.tell(f"{self.name} ends: {type(error).__name__} {error}")
            return False
        finally:
            self._ways.close()
        return True

    def fence(self, moment: int) -> None:
        """Another client has the id from this moment on."""
        self.fenced = moment
        if self._current is not None and self._current.ended is None:
            self._current.fenced = moment

    async def _step(self, factor: float = 1.0) -> None:
        """Something may happen to the client between two requests. `factor` makes it likelier."""
        if self._terms.is_last or self._stage.winding_down or self.fenced is not None:
            return
        roll = self._chance.random() / factor
        if roll < DIES:
            raise Dead("in mid-transaction")
        if roll < DIES + HANGS:
            self._world.tell(f"{self.name} hangs")
            self.hangs.set()
            await self.go_on.wait()
            self._world.tell(f"{self.name} goes on")

    # asking

    async def _ask(self, key: ApiKey, version: int, message: Any, *, kind: int = TRANSACTION) -> Any:
        """The coordinator's answer. Raises Lost."""
        name = self._lane.name
        if key is not ApiKey.INIT_PRODUCER_ID:
            self._lane.on_sent((kind, name), self, (key, version, message))
        return await self._ways.ask_coordinator(kind, name, key, version, message)

    async def _retried(self, what: str, error: ErrorCode, *, kind: int = TRANSACTION) -> None:
        """Wait before a request is sent again."""
        self._lane.waits_for = f"{what}: {error.name}"
        if error not in AGAIN:
            self._ways.is_no_coordinator(kind, self._lane.name)
        await self._ways.pause()

    def _refused(self, what: str, error: ErrorCode) -> None:
        if not error.retriable:
            self._world.problem("refused", f"{self.name}: {what} was told {error.name}")

    # the id

    async def _initialise(self, expected: tuple[int, int] | None) -> None:
        """Get an id, or with `expected` the next epoch. Raises Fenced."""
        producer_id, epoch = expected or (-1, -1)
        request = InitProducerIdRequest(self._lane.name, self._terms.timeout_ms, producer_id, epoch)
        version = self._chance.choice((4, 5))
        while True:
            try:
                answer = await self._ask(ApiKey.INIT_PRODUCER_ID, version, request)
            except Lost:
                continue
            error = error_of(answer.error_code)
            if error is ErrorCode.NONE:
                break
            if error in FENCED:
                raise Fenced(f"InitProducerId {error.name}")
            if error not in (*AGAIN, *ELSEWHERE):
                self._refused("InitProducerId", error)
            await self._retried("InitProducerId", error)
        if self.fenced is not None:
            self._world.problem("fenced-init", f"{self.name} got an epoch although another client has its id")
        self._take_producer(answer.producer_id, answer.producer_epoch)
        self._is_in_doubt = False
        self._position = None
        self._world.tell(f"{self.name} is producer {self.producer}{' (new protocol)' if self.is_new else ''}")
        self._lane.on_ready()

    def _take_producer(self, producer_id: int, epoch: int) -> None:
        if self.producer != (producer_id, epoch):
            self.producer = producer_id, epoch
            self._sequences.clear()

    # one transaction

    async def _transact(self) -> bool:
        """One transaction. Returns whether it was committed. Raises Fenced, Dead."""
        begun = self._current = self._stage.history.begin(self._lane.name)
        begun.fenced = self.fenced
        commits = self._terms.is_last or self._chance.random() >= ABORTS
        try:
            await self._fill(begun)
        except Abortable as error:
            self._world.tell(f"{self.name} aborts {begun.number}: {error}")
            commits = False
        await self._end(begun, commit=commits)
        return begun.is_committed

    async def _fill(self, begun: Transaction) -> None:
        """Send all that belongs to it. Raises Abortable, Dead."""
        counts = await self._counts(begun)
        partitions = sorted(counts)
        if not self.is_new:
            await self._add(partitions, with_offsets=begun.taken is not None)
            await self._step()
        writes = [self._write(begun, partition, counts[partition]) for partition in partitions]
        if self._chance.random() < 0.5:
            for outcome in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        else:
            await in_turn(writes, self._step)
        await self._step()
        if self._terms.dies:
            raise Dead("and nobody takes over")
        if begun.taken is not None:
            await self._commit_offsets(begun.taken)
            await self._step()

    async def _counts(self, begun: Transaction) -> dict[Partition, list[int]]:
        """The records that it is to write: the numbers of records in each batch, by partition."""
        if self._terms.register is not None:
            begun.taken = await self._take(self._terms.register)
        if begun.taken is not None:
            outputs = [each for each in self._stage.partitions if each != INPUT]
            counts: dict[Partition, list[int]] = {}
            for _ in begun.taken.offsets:
                counts.setdefault(self._chance.choice(outputs), []).append(1)
            return counts
        some = self._chance.sample(self._stage.partitions, self._chance.randrange(1, len(self._stage.partitions) + 1))
        return {
            each: [self._chance.randrange(1, RECORDS_MAX + 1) for _ in range(self._chance.randrange(1, BATCHES_MAX))]
            for each in some
        }

    async def _take(self, register: Register) -> Taken | None:
        """Read some input from the committed offset on. None: there is none now."""
        while self._position is None:
            self._position = await look(self._stage, self._ways, register, stable=True)
        self._reads += 1
        reader = Reader(self._stage, f"{self.name}/{self._reads}", INPUT, committed_only=True, position=self._position)
        records = await reader.poll(wait_ms=50)
        reader.close()
        if not records:
            return None
        return Taken(register, self._position, reader.position, tuple(each.offset for each in records))

    # its parts

    async def _add(self, partitions: list[Partition], *, with_offsets: bool) -> None:
        topic = AddPartitionsToTxnTopic(self._stage.partitions[0].topic, tuple(each.number for each in partitions))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._lane.name,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=(topic,),
        )
        await self._until_done(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request, added)
        if with_offsets:
            group = AddOffsetsToTxnRequest(self._lane.name, *self.producer, self._lane.name)
            await self._until_done(ApiKey.ADD_OFFSETS_TO_TXN, 3, group, lambda answer: error_of(answer.error_code))

    async def _commit_offsets(self, taken: Taken) -> None:
        partition = TxnOffsetCommitRequestPartition(taken.register.partition.number, taken.end)
        topic = TxnOffsetCommitRequestTopic(taken.register.partition.topic, (partition,))
        request = TxnOffsetCommitRequest(self._lane.name, taken.register.group, *self.producer, topics=(topic,))
        version = 5 if self.is_new else self._chance.choice((3, 4))
        await self._until_done(ApiKey.TXN_OFFSET_COMMIT, version, request, offsets_committed, kind=GROUP)

    async def _until_done(
        self, key: ApiKey, version: int, request: Any, outcome: Any, *, kind: int = TRANSACTION
    ) -> None:
        """Send a request until it is done. Raises Abortable."""
        deadline = self._world.loop.time() + DELIVERY_SECONDS_MAX
        while self._world.loop.time() < deadline:
            try:
                error = outcome(await self._ask(key, version, request, kind=kind))
            except Lost:
                self._is_in_doubt = True
                continue
            if error is ErrorCode.NONE:
                return
            if error in ABORTABLE:
                raise Abortable(f"{key.name} {error.name}")
            self._is_in_doubt = self._is_in_doubt or error in ELSEWHERE
            self._refused(key.name, error)
            await self._retried(key.name, error, kind=kind)
        raise Abortable(f"{key.name} takes too long")

    async def _write(self, begun: Transaction, partition: Partition, counts: list[int]) -> None:
        """Send batches, one behind the other. Raises Abortable."""
        for count in counts:
            number = len(begun.writes)
            padding = "." * self._chance.choice(PADDINGS)
            values = [f"{begun.number}/{number + at}/{padding}".encode() for at in range(count)]
            sent = self._stage.history.now()
            writes = [Write(partition, value, sent) for value in values]
            begun.writes += writes
            base = await self._send(partition, self._batch(partition, values))
            for at, write in enumerate(writes):
                write.offset = UNKNOWN if base == UNKNOWN else base + at
            self._sequences[partition] = self._sequences.get(partition, 0) + count
            self._world.tell(f"{self.name} wrote {begun.number} to {partition} at {base}")

    def _batch(self, partition: Partition, values: list[bytes]) -> bytes:
        timestamp = BORN_MS + int(self._world.loop.time() * 1000)
        records = [Record(at, timestamp, None, value) for at, value in enumerate(values)]
        return encode_batch(
            records,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self._sequences.get(partition, 0),
            transactional=True,
        )

    async def _send(self, partition: Partition, data: bytes) -> int:
        """Send a batch until it is acknowledged. Returns its first offset, or UNKNOWN. Raises Abortable."""
        version = self._chance.choice(NEW_PRODUCE if self.is_new else OLD_PRODUCE)
        part = (PartitionProduceData(partition.number, data),)
        topic = (
            TopicProduceData(topic_id=self._stage.topic_id, partition_data=part)
            if version >= BY_ID
            else TopicProduceData(name=partition.topic, partition_data=part)
        )
        request = ProduceRequest(self._lane.name, -1, self._chance.choice(TIMEOUTS_MS), (topic,))
        deadline = self._world.loop.time() + DELIVERY_SECONDS_MAX
        while self._world.loop.time() < deadline:
            self._lane.on_sent(None, self, (partition, ApiKey.PRODUCE, version, request))
            try:
                answer = await self._ways.ask_leader(partition, ApiKey.PRODUCE, version, request)
            except Lost:
                self._is_in_doubt = True
                continue
            [answered] = answer.responses[0].partition_responses
            error, base = error_of(answered.error_code), answered.base_offset
            if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                return int(base) if error is ErrorCode.NONE and base >= 0 else UNKNOWN
            if error in ABORTABLE:
                raise Abortable(f"Produce {error.name}")
            self._is_in_doubt = True  # it may be in the log of a leader that was one no longer
            self._refused("Produce", error)
            self._lane.waits_for = f"Produce: {error.name}"
            self._ways.is_no_leader(partition)
            await self._ways.pause()
        raise Abortable("Produce takes too long")

    # its end

    async def _end(self, begun: Transaction, *, commit: bool) -> None:
        """Commit or abort, until the outcome is known. Raises Fenced."""
        request = EndTxnRequest(self._lane.name, *self.producer, commit)
        version = 5 if self.is_new else self._chance.choice((3, 4))
        may_be_done = False
        if commit:
            begun.asked = self._stage.history.now()
        while True:
            self._stage.on_end()
            try:
                answer = await self._ask(ApiKey.END_TXN, version, request)
            except Lost:
                self._is_in_doubt = may_be_done = True
                await self._step(IN_DOUBT_FACTOR)
                continue
            error = error_of(answer.error_code)
            self._world.tell(f"{self.name} {'commits' if commit else 'aborts'} {begun.number}: {error.name}")
            if error is ErrorCode.NONE:
                self._ended(begun, is_committed=commit)
                if self.is_new:
                    self._take_producer(answer.producer_id, answer.producer_epoch)
                    self._is_in_doubt = False
                self._position = begun.taken.end if begun.taken is not None and commit else self._position
                return
            if error in (ErrorCode.INVALID_TXN_STATE, *FENCED):
                break
            may_be_done = may_be_done or error in ELSEWHERE
            self._is_in_doubt = self._is_in_doubt or may_be_done
            if error not in (*AGAIN, *ELSEWHERE):
                self._refused("EndTxn", error)
            await self._retried("EndTxn", error)
        if error is ErrorCode.INVALID_TXN_STATE or not (commit and may_be_done):
            self._ended(begun, is_committed=False)
        if error in FENCED and (self.fenced is not None or self._chance.random() < 0.5):
            raise Fenced(f"EndTxn {error.name}")
        await self._initialise(self.producer)

    def _ended(self, begun: Transaction, *, is_committed: bool) -> None:
        begun.is_committed, begun.is_aborted = is_committed, not is_committed
        begun.ended = self._stage.history.now()
