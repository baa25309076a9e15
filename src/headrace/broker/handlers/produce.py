"""Produce: appends batches, and acknowledges them as `acks` asks.

- acks=0: no answer at all. After an error the connection is closed, as on Kafka: nothing else would make the client
  look for the leader again.
- acks=1: answered once appended, not flushed. Where the log is kept elsewhere, once it is stored there.
- acks=all (-1): answered once the high watermark has passed the batch, that is, once the whole ISR has flushed it.
  REQUEST_TIMED_OUT after the client's timeout, or REQUEST_WAIT_MS_MIN where that is longer. The batch may still be
  committed later: the client retries, and the batch of an idempotent producer is recognised.

Internal topics belong to their coordinators: INVALID_TOPIC_EXCEPTION.

- v3: the first with record batches.
- v8: a message with the error, and the records that are to blame (KIP-467).
- v9: flexible.
- v10: the current leader and its address with NOT_LEADER_OR_FOLLOWER (KIP-951).
- v11: TRANSACTION_ABORTABLE.
- v12: a partition becomes part of the producer's transaction with its first batch (TV2, KIP-890). Before, the client
  has added it, and the coordinator is asked whether it has.
- v13: topics by id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Mapping
from typing import Final, cast
from uuid import UUID

from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_OFFSET, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import NAMES_PER_TURN_MAX, RECORD_FAULTS_MAX, REQUEST_WAIT_MS_MIN, TOPIC_NAME_CHARS_MAX
from headrace.base.ports import Buffer
from headrace.broker.handlers.plain_produce import ACKS_ALL, shortcuts
from headrace.broker.handlers.transactional_produce import Admitting
from headrace.broker.kit.deferred import Deferred, settled
from headrace.broker.partitions.intake.forwarding import Forwarded
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.requests.access import by_name_or_id, in_turn, on_topics, on_transaction
from headrace.broker.requests.context import Admitted, Checked, Handler, Refused, RequestContext, Slices
from headrace.broker.requests.current_leaders import told_in_produce
from headrace.broker.requests.turns import take_turns
from headrace.metadata.access.acls import AclOperation
from headrace.storage.engine.appending import Appended
from headrace.wire.apis import ApiKey
from headrace.wire.batches import is_of_transaction
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.wire.plain_produce import TOPIC_ID_VERSION
from headrace.wire.validation import RecordFault

ACKS_NONE: Final = 0
NOT_A_PART: Final = "The partition is not known to be a part of the producer's transaction."


def handle(
    request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Deferred | Awaitable[ProduceResponse | None] | None:
    """Append all batches. Answer at once, or once all are appended (recompressed, where the topic wants that) and
    committed. At acks=0 the answer is None, or Unanswerable."""
    if request.transactional_id is None:
        return _in_turns(request, context) if context.is_long else _at_once(request, context)
    admitting = Admitting(request.transactional_id, request, context)
    if not admitting.must_wait and not context.is_long:
        return _at_once(request, context)
    admitting.queue()
    return _once_admitted(admitting)


def _at_once(request: ProduceRequest, context: RequestContext) -> ProduceResponse | Deferred | None:
    job = ProduceJob(request, context)
    for _ in job.steps(request):
        pass
    return job.answer()


async def _in_turns(request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
    """As `_at_once`, of a request that names very much. Nothing else of its connection is served meanwhile."""
    job = ProduceJob(request, context)
    await take_turns(job.steps(request))
    return cast("ProduceResponse | None", await settled(job.answer()))


async def _once_admitted(admitting: Admitting) -> ProduceResponse | None:
    """Append the batches once the coordinator has admitted them, in the order of the requests."""
    async with admitting.turn() as refused:
        job = ProduceJob(admitting.request, admitting.context, refused)
        if admitting.context.is_long:
            await take_turns(job.steps(admitting.request))
        else:
            for _ in job.steps(admitting.request):
                pass
        answer = job.answer()
    return cast("ProduceResponse | None", await settled(answer))


class Unanswerable(HeadraceError):  # noqa: N818 - a state, not a mistake
    """An error of a request with acks=0, which only the closing of the connection can report."""


class Outcome:
    """The outcome of one partition's batch. At acks=all it is final when the batch is committed."""

    __slots__ = (
        "_job",
        "base_offset",
        "error",
        "faults",
        "index",
        "log_append_time_ms",
        "log_start_offset",
        "message",
        "tells_leader",
    )

    def __init__(self, job: ProduceJob, index: int) -> None:
        self._job = job
        self.index = index
        self.tells_leader = False
        """True: the new leader has appended the batch, and the producer should go there."""
        self.error = ErrorCode.NONE
        self.message: str | None = None
        self.faults: tuple[RecordFault, ...] = ()
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = -1
        self.log_start_offset = NO_OFFSET

    def refuse(self, error: ErrorCode, message: str | None = None, faults: tuple[RecordFault, ...] = ()) -> None:
        self.error = error
        self.message = message
        self.faults = faults
        self.log_append_time_ms = -1

    def on_outcome(self, error: ErrorCode) -> None:
        """`Commit`: the batch is committed, or never will be under this leadership."""
        if error is not ErrorCode.NONE:
            self.base_offset = NO_OFFSET
            self.refuse(error)
        self._job.on_settled(self)

    def response(self) -> PartitionProduceResponse:
        return PartitionProduceResponse(
            index=self.index,
            error_code=self.error,
            base_offset=self.base_offset,
            log_append_time_ms=self.log_append_time_ms,
            log_start_offset=self.log_start_offset,
            record_errors=tuple(BatchIndexAndErrorMessage(index, message) for index, message in self.faults),
            error_message=self.message,
        )


class ProduceJob:
    """One request: every partition's outcome, and which of them are still awaited. First all `steps`, then `answer`."""

    def __init__(
        self,
        request: ProduceRequest,
        context: RequestContext,
        refused: Mapping[TopicPartition, ErrorCode] | None = None,
    ) -> None:
        """`refused`: partitions whose batches may not be appended, as the transaction's coordinator says."""
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._refused = refused or {}
        self._context = context
        self._awaited: dict[Outcome, None] = {}
        self._deferred: Deferred | None = None
        self._as_expected = True
        """No outcome has changed since the answer was put together."""
        self._faults_left = RECORD_FAULTS_MAX
        """How many more refused records the answer may name."""
        self._topics: list[tuple[str, UUID, list[Outcome]]] = []
        """The topics' outcomes, not the request. They may outlive the answer where the disk is slow, and must not hold
        its records."""

    def steps(self, request: ProduceRequest) -> Iterator[None]:
        """Take all batches of the request. Others may have their turn of the event loop at each step."""
        taken = 0
        for topic in request.topic_data:
            topic_id = self._topic_id(topic)
            outcomes: list[Outcome] = []
            self._topics.append((topic.name, topic.topic_id, outcomes))
            for data in topic.partition_data:
                outcome = Outcome(self, data.index)
                outcomes.append(outcome)
                if isinstance(topic_id, ErrorCode):
                    outcome.refuse(topic_id)
                else:
                    self._take(topic_id, data, outcome)
                taken += 1
                if taken % NAMES_PER_TURN_MAX == 0:
                    yield

    def _topic_id(self, topic: TopicProduceData) -> TopicId | ErrorCode:
        """Return the topic's id, or the error for each of its partitions."""
        if self._acks not in (ACKS_ALL, 0, 1):
            return ErrorCode.INVALID_REQUIRED_ACKS
        if self._context.version >= TOPIC_ID_VERSION:
            found, missing = self._context.image.topic_by_id(TopicId(topic.topic_id)), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found, missing = self._context.image.topic(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is None:
            return missing
        return ErrorCode.INVALID_TOPIC_EXCEPTION if found.internal else found.id

    def _take(self, topic_id: TopicId, data: PartitionProduceData, outcome: Outcome) -> None:
        found = self._context.services.partitions.find(
            TopicPartition(topic_id, PartitionIndex(data.index)), self._context.image
        )
        if isinstance(found, ErrorCode):
            if found is not ErrorCode.NOT_LEADER_OR_FOLLOWER or not self._is_carried(topic_id, data, outcome):
                outcome.refuse(found)
        elif data.records is None:
            outcome.refuse(ErrorCode.INVALID_RECORD, "The request carries no records for the partition.")
        else:
            error = self._refused.get(found.topic_partition)
            if error is None:
                self._append(found, data.records, outcome)
            else:
                outcome.refuse(error, NOT_A_PART)

    def _is_carried(self, topic_id: TopicId, data: PartitionProduceData, outcome: Outcome) -> bool:
        """Whether the partition is handed over, and its new leader gets the batch."""
        if data.records is None or self._acks == ACKS_NONE:
            return False
        partitions, key = self._context.services.partitions, TopicPartition(topic_id, PartitionIndex(data.index))

        def done(appended: Appended | Forwarded | WriteRefusal) -> None:
            self._on_appended(partitions.called(key), outcome, appended)

        self._awaited[outcome] = None
        if self._context.services.forward(key, data.records, self._acks == ACKS_ALL, done):
            return True
        del self._awaited[outcome]
        return False

    def _append(self, partition: Partition, records: Buffer, outcome: Outcome) -> None:
        self._awaited[outcome] = None
        partition.take(
            records,
            needs_isr=self._acks == ACKS_ALL,
            done=lambda appended: self._on_appended(partition, outcome, appended),
        )

    def _on_appended(
        self, partition: Partition | None, outcome: Outcome, appended: Appended | Forwarded | WriteRefusal
    ) -> None:
        """Note the result of an append, at once or later, perhaps too late."""
        if outcome not in self._awaited:
            return
        self._as_expected = self._deferred is None
        if isinstance(appended, WriteRefusal):
            faults = appended.faults[: self._faults_left]
            self._faults_left -= len(faults)
            outcome.refuse(appended.error, appended.message, faults)
            self.on_settled(outcome)
            return
        outcome.base_offset = appended.base_offset
        outcome.log_append_time_ms = appended.log_append_time_ms
        if isinstance(appended, Forwarded):
            outcome.log_start_offset, outcome.tells_leader = appended.log_start_offset, appended.tells
            self.on_settled(outcome)
            return
        assert partition is not None, "it has just taken the batch"
        outcome.log_start_offset = partition.start_offset
        if self._acks == ACKS_ALL:
            partition.park_commit(Offset(appended.end), outcome)
        elif self._acks != ACKS_NONE:
            partition.park_stored(Offset(appended.end), outcome)
        else:
            self.on_settled(outcome)

    def on_settled(self, outcome: Outcome) -> None:
        """Note that one outcome is final."""
        if outcome.error is not ErrorCode.NONE:
            self._as_expected = False
        if self._awaited.pop(outcome, self) is None and not self._awaited and self._deferred is not None:
            self._finish(self._deferred)

    def _check_unanswered(self) -> None:
        """Raises Unanswerable where a batch was refused."""
        for name, topic_id, outcomes in self._topics:
            for outcome in outcomes:
                if outcome.error is not ErrorCode.NONE:
                    shown = str(name or topic_id)[:TOPIC_NAME_CHARS_MAX]  # it may be as long as a request
                    raise Unanswerable(
                        f"Produce with acks=0 to partition {outcome.index} of '{shown}': "
                        f"{outcome.message or outcome.error.message}"
                    )

    def answer(self) -> ProduceResponse | Deferred | None:
        """Return the response, now or once every outcome is final or the client's time is up."""
        if not self._awaited:
            try:
                return self._response()
            finally:
                self._topics = []  # as `_finish`
        if self._acks == ACKS_NONE:
            self._deferred = Deferred(None)
        else:
            self._deferred = Deferred(self._response())
            self._context.services.deadlines.add(self, max(self._timeout_ms, REQUEST_WAIT_MS_MIN))
        return self._deferred

    @property
    def is_settled(self) -> bool:
        """`Waiting`: it is answered, or nobody waits any more."""
        return self._deferred is None or self._deferred.done()

    def time_out(self) -> None:
        """Answer uncommitted batches with REQUEST_TIMED_OUT. Later outcomes find nobody waiting."""
        awaited, self._awaited = self._awaited, {}
        for outcome in awaited:
            outcome.base_offset = NO_OFFSET
            outcome.refuse(ErrorCode.REQUEST_TIMED_OUT)
        self._as_expected = False
        if self._deferred is not None:
            self._finish(self._deferred)

    def _finish(self, deferred: Deferred) -> None:
        """Set the answer, and release the outcomes, which refer to their job, so that nothing is left for the garbage
        collector."""
        try:
            deferred.set_result(deferred.expected if self._as_expected else self._response())
        except Unanswerable as error:
            deferred.set_exception(error)
        self._topics = []

    def _response(self) -> ProduceResponse | None:
        if self._acks == ACKS_NONE:
            self._check_unanswered()
            return None
        responses = [
            TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=tuple([outcome.response() for outcome in outcomes]),
            )
            for name, topic_id, outcomes in self._topics
        ]
        context = self._context
        return told_in_produce(
            ProduceResponse(responses=tuple(responses)),
            version=context.version,
            image=context.services.metadata.image,
            listener=context.listener,
            carried=[
                (name or TopicId(topic_id), outcome.index)
                for name, topic_id, outcomes in self._topics
                for outcome in outcomes
                if outcome.tells_leader
            ],
        )


def _all_forbidden(request: ProduceRequest, error: ErrorCode) -> ProduceResponse | None:
    if request.acks == ACKS_NONE:
        shown = (request.transactional_id or "")[:TOPIC_NAME_CHARS_MAX]
        raise Unanswerable(f"Produce with acks=0 by '{shown}': {error.message}")
    return ProduceResponse(responses=tuple(_forbidden(topic, error) for topic in request.topic_data))


def _forbidden(topic: TopicProduceData, error: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=tuple(
            PartitionProduceResponse(index=each.index, error_code=error, base_offset=NO_OFFSET)
            for each in topic.partition_data
        ),
    )


_on_transaction = on_transaction(_all_forbidden)


def _transaction(request: ProduceRequest, context: RequestContext) -> Admitted | Refused:
    """Access for those who may write as the transactional id. As on Kafka, a batch of a transaction needs one."""
    if request.transactional_id is None and any(
        data.records is not None and is_of_transaction(data.records)
        for topic in request.topic_data
        for data in topic.partition_data
    ):
        return Refused(_all_forbidden(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    return cast("Admitted | Refused", _on_transaction(request, context))


_on_topics = on_topics(
    ProduceResponse,
    AclOperation.WRITE,
    _forbidden,
    items="topic_data",
    answers="responses",
    name_of=by_name_or_id,
    in_slices=False,
)


def _topics(request: ProduceRequest, context: RequestContext) -> Checked:
    """Access to the topics that the client may write to. Raises Unanswerable where it wants no answer."""
    found = _on_topics(request, context)
    return _of_topics(request, found) if isinstance(found, Generator) else _answerable(request, found)


def _of_topics(request: ProduceRequest, slices: Slices) -> Slices:
    return _answerable(request, (yield from slices))


def _answerable(request: ProduceRequest, found: Admitted | Refused) -> Admitted | Refused:
    """Raises Unanswerable where something is refused, and no answer is wanted."""
    if request.acks == ACKS_NONE and (isinstance(found, Refused) or found.finish is not None):
        raise Unanswerable("Produce with acks=0 to a topic that its client may not write to")
    return found


HANDLER = Handler(
    int(ApiKey.PRODUCE),
    (3, 13),
    handle,
    in_turn(_transaction, _topics),
    pipelined=True,
    shortcuts=shortcuts,
)
