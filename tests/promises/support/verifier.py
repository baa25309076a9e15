"""Producers and consumers in the manner of kgo-verifier: each record's key has the offset that it expects. So every
reader can judge every record by itself, wherever it begins.

Each partition has one producer, idempotent, whose n-th record must get offset n. Readers go from the start to the end,
or begin anywhere. Members of groups commit, and an offset acknowledged to one of them never falls back for the next.
The oracle is what librdkafka was told: nothing here knows of the broker's files or memory.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

from tests.promises.support.load import DEADLINE_S, QUIET
from tests.promises.support.records import IMPATIENT
from tests.threads import joined

MOVED: Final = (confluent_kafka.KafkaError._UNKNOWN_PARTITION, confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION)

TURN_S: Final = 0.05
"""Of a producer: a record to each of its partitions."""
RECORDS_AT_RANDOM: Final = 20
"""Read from each place that is chosen by chance."""
PATIENT: Final = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **QUIET}
READS: Final = PATIENT | {"enable.auto.commit": False, "socket.timeout.ms": IMPATIENT["socket.timeout.ms"]}

PATIENCE_S: Final = 240.0
"""Longest that readers and groups may take to come to the end, on a machine that others use too."""

Place = tuple[str, int]
"""Topic and partition."""


class Expected(NamedTuple):
    """The expected contents of a record."""

    key: bytes
    value: bytes


def expected(place: Place, offset: int) -> Expected:
    """Told from all others, and of changing length."""
    return Expected(b"%s-%d@%d" % (place[0].encode(), place[1], offset), b"%d:" % offset + b"v" * (offset * 97 % 1200))


def wrong(message: Any) -> str | None:
    """The fault of a record at its offset, as a sentence; None: it has none."""
    if (error := message.error()) is not None:
        return f"{message.topic()}-{message.partition()}: {error}."
    place, offset = (message.topic(), message.partition()), message.offset()
    if (message.key(), message.value()) != expected(place, offset):
        return f"{place[0]}-{place[1]}: at {offset} lies {message.key()!r}."
    return None


def _is_complaint(message: Any) -> bool:
    """Of no partition, and librdkafka goes on: that a coordinator is another now, for one."""
    return message.error() is not None and message.topic() is None and not message.error().fatal()


class Lane:
    """One partition: what its producer sent, and what it was told of it. Written by that producer's thread alone."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sent = 0
        self.acknowledged = 0
        """So many, which an idempotent producer is told in order: all offsets below are acknowledged."""
        self.failures: list[str] = []
        self._at = array("d")

    def on_delivery(self, offset: int, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(f"{self.place}: the record for {offset} failed: {error}.")
        elif message.offset() not in (offset, -1, None):  # None: an answer was lost, a later one told that it was taken
            self.failures.append(f"{self.place}: the record for {offset} was told to be at {message.offset()}.")
        elif offset != self.acknowledged:
            self.failures.append(f"{self.place}: {offset} was acknowledged after {self.acknowledged - 1}.")
        self.acknowledged += 1
        self._at.append(time.monotonic())

    def longest_pause_ms(self, since: float, until: float) -> float:
        """Between two acknowledgements that lie about this time."""
        times = [at for at in self._at[-10_000:] if since - 1.0 <= at <= until + 1.0]
        return 1000 * max((later - earlier for earlier, later in pairwise(times) if later >= since), default=0.0)


class Worker:
    """Does one thing over and over in a thread of its own. A context manager."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Idempotent."""
        self._stopping.set()
        joined(self._thread, 2 * DEADLINE_S)  # it has so long itself, and then tells what it waited for

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.act()
            self.end()
        except BaseException as error:
            self.failures.append(f"{type(self).__name__}: {error!r}")
            raise

    def act(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """The last actions of its client."""


class VerifyingProducer(Worker):
    """The only one of some partitions, at a steady pace."""

    def __init__(self, bootstrap: str, lanes: Sequence[Lane]) -> None:
        super().__init__()
        self._lanes = lanes
        options = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2}
        self._client = confluent_kafka.Producer(options | PATIENT | {"retry.backoff.ms": 20, **IMPATIENT})

    def act(self) -> None:
        for lane in self._lanes:
            offset, (topic, partition) = lane.sent, lane.place
            key, value = expected(lane.place, offset)

            def told(error: Any, message: Any, lane: Lane = lane, offset: int = offset) -> None:
                lane.on_delivery(offset, error, message)

            with suppress(BufferError):
                self._client.produce(topic, value, key, partition, on_delivery=told)
                lane.sent += 1
        begun = time.monotonic()
        while (left := begun + TURN_S - time.monotonic()) > 0:
            self._client.poll(left)

    def end(self) -> None:
        """All that was sent is acknowledged, or has failed."""
        left = self._client.flush(DEADLINE_S)
        if left:
            self.failures.append(f"{left} records were neither acknowledged nor refused: {self._waits_for()}.")

    def _waits_for(self) -> list[str]:
        """Lanes, and who leads them by what brokers say now."""
        topics, told = self._client.list_topics(timeout=DEADLINE_S).topics, list[str]()
        for lane in self._lanes:
            topic, partition = lane.place
            if lane.acknowledged < lane.sent:
                leader = topics[topic].partitions[partition].leader
                told.append(f"{lane.place} from {lane.acknowledged} to {lane.sent - 1}, led by {leader}")
        return told


class Sequential(Worker):
    """Reads all partitions from their start on, live: each record once, and in order."""

    def __init__(self, bootstrap: str, lanes: Sequence[Lane]) -> None:
        super().__init__()
        self.next: dict[Place, int] = {lane.place: 0 for lane in lanes}
        options = {"bootstrap.servers": bootstrap, "group.id": "sequential", "auto.offset.reset": "error"}
        self._client = confluent_kafka.Consumer(options | READS)
        self._client.assign([TopicPartition(*lane.place, 0) for lane in lanes])

    def act(self) -> None:
        for message in self._client.consume(500, timeout=0.1):
            if (problem := wrong(message)) is not None:
                self.failures.append(problem)
                continue
            place = message.topic(), message.partition()
            if message.offset() != self.next[place]:
                self.failures.append(f"{place}: {message.offset()} came after {self.next[place] - 1}.")
            self.next[place] = message.offset() + 1

    def end(self) -> None:
        self._client.close()

    def has_read(self, lanes: Sequence[Lane]) -> bool:
        """All that was acknowledged."""
        return all(self.next[lane.place] >= lane.acknowledged for lane in lanes)


class Random(Worker):
    """Reads some records from anywhere below what was acknowledged, in the log or in durable history."""

    def __init__(self, bootstrap: str, lanes: Sequence[Lane], seed: int) -> None:
        super().__init__()
        self.reads = 0
        self._lanes = lanes
        self._chance = random.Random(seed)
        options = {"bootstrap.servers": bootstrap, "group.id": "random", "auto.offset.reset": "error"}
        self._client = confluent_kafka.Consumer(options | READS)

    def act(self) -> None:
        lane = self._chance.choice(self._lanes)
        if lane.acknowledged == 0:
            self._stopping.wait(TURN_S)
            return
        offset = self._chance.randrange(lane.acknowledged)
        end = min(lane.acknowledged, offset + RECORDS_AT_RANDOM)
        self._client.assign([TopicPartition(*lane.place, offset)])
        deadline = time.monotonic() + DEADLINE_S
        while offset < end and not self._stopping.is_set():
            message = self._client.poll(0.1)
            if message is not None:
                problem = wrong(message)
                if problem is None and message.offset() != offset:
                    problem = f"{lane.place}: {message.offset()} came where {offset} was to be."
                if problem is not None:
                    self.failures.append(problem)
                    return
                offset += 1
            elif time.monotonic() > deadline:
                self.failures.append(f"{lane.place}: {offset} of {end} did not come.")
                return
        self.reads += 1

    def end(self) -> None:
        self._client.close()


class Group:
    """The joint work of a group's members."""

    def __init__(self, name: str, protocol: str, topics: Sequence[str]) -> None:
        self.name = name
        self.protocol = protocol
        self.topics = topics
        self.commits = 0
        self.assignments = 0
        self.committed: dict[Place, int] = {}
        """The highest that was acknowledged."""
        self.read: dict[Place, int] = {}
        """Up to where some member has read."""
        self._lock = threading.Lock()

    def on_read(self, place: Place, offset: int) -> str | None:
        """The first record of an assignment, or the next. Returns a fault: some member must have read all records below
        it."""
        with self._lock:
            before = self.read.get(place, 0)
            self.read[place] = max(before, offset + 1)
        return f"group {self.name}, {place}: nobody read {before} to {offset - 1}." if offset > before else None

    def on_committed(self, place: Place, offset: int) -> None:
        with self._lock:
            self.committed[place] = max(self.committed.get(place, 0), offset)
            self.commits += 1

    def floor(self, place: Place) -> int:
        with self._lock:
            return self.committed.get(place, 0)

    def has_committed(self, lanes: Sequence[Lane]) -> bool:
        """All that was acknowledged of its topics."""
        return all(self.floor(lane.place) >= lane.acknowledged for lane in lanes if lane.place[0] in self.topics)


class Member(Worker):
    """Of a group: reads on from what was committed, commits, and asks what is committed."""

    def __init__(self, bootstrap: str, group: Group) -> None:
        super().__init__()
        self.asked = 0
        self._group = group
        self._next: dict[Place, int] = {}
        """Of what it was assigned and has begun to read."""
        self._floors: dict[Place, int] = {}
        """The offset acknowledged as committed when it was assigned."""
        options = {"bootstrap.servers": bootstrap, "group.id": group.name, "group.protocol": group.protocol}
        options |= {"auto.offset.reset": "earliest"}
        if group.protocol == "classic":
            options |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
        self._client = confluent_kafka.Consumer(options | READS)
        self._client.subscribe(list(group.topics), on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone)

    def _assigned(self, _: Any, partitions: Sequence[Any]) -> None:
        self._group.assignments += 1
        for each in partitions:
            place = each.topic, each.partition
            self._next.pop(place, None)
            self._floors[place] = self._group.floor(place)

    def _gone(self, _: Any, partitions: Sequence[Any]) -> None:
        for each in partitions:
            self._next.pop((each.topic, each.partition), None)

    def act(self) -> None:
        begun = time.monotonic()
        read: dict[Place, int] = {}
        while len(read) < RECORDS_AT_RANDOM and time.monotonic() < begun + 0.2 and not self._stopping.is_set():
            message = self._client.poll(0.05)
            if message is None or _is_complaint(message):
                continue
            if (problem := wrong(message)) is not None:
                self.failures.append(f"group {self._group.name}: {problem}")
                continue
            place = message.topic(), message.partition()
            self._on_record(place, message.offset())
            read[place] = message.offset() + 1
        if wanted := {place: offset for place, offset in read.items() if place in self._next}:
            self._commit(wanted)

    def _on_record(self, place: Place, offset: int) -> None:
        known = self._next.get(place)
        if known is None and offset < self._floors.get(place, 0):
            self.failures.append(
                f"group {self._group.name}, {place}: begins at {offset}, {self._floors[place]} was committed."
            )
        if known is not None and offset != known:
            self.failures.append(f"group {self._group.name}, {place}: {offset} came after {known - 1}.")
        if (problem := self._group.on_read(place, offset)) is not None:
            self.failures.append(problem)
        self._next[place] = offset + 1

    def _commit(self, wanted: dict[Place, int]) -> None:
        with suppress(KafkaException):  # refused or unanswered: what became of it is not known
            offsets = [TopicPartition(*place, offset) for place, offset in wanted.items()]
            for each in self._client.commit(offsets=offsets, asynchronous=False):
                if each.error is None:
                    self._group.on_committed((each.topic, each.partition), each.offset)
            floors = {place: self._group.floor(place) for place in wanted}
            for each in self._client.committed([TopicPartition(*place) for place in wanted], timeout=2.0):
                place = each.topic, each.partition
                if each.error is None and max(each.offset, 0) < floors[place]:
                    self.failures.append(
                        f"group {self._group.name}, {place}: {each.offset} after {floors[place]} was acknowledged."
                    )
            self.asked += 1

    def end(self) -> None:
        self._client.close()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Fails after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    waiting = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what
        waiting.wait(TURN_S)


def ends_of(bootstrap: str, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
    """Start and high watermark of each partition, as a new client gets them once all have leaders. For librdkafka a
    partition without a leader is absent."""
    client = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", **READS})

    def are_led() -> bool:
        topics = client.list_topics(timeout=DEADLINE_S).topics
        return all(topics[topic].partitions[partition].leader >= 0 for topic, partition in places)

    try:
        wait_until(are_led, "not every partition is led")
        return {place: _ends_of_one(client, place) for place in places}
    finally:
        client.close()


def _ends_of_one(client: Any, place: Place) -> tuple[int, int]:
    """Asks again where a leader has changed since the client looked: librdkafka then knows no such partition."""
    found: list[tuple[int, int]] = []

    def is_answered() -> bool:
        try:
            found.append(client.get_watermark_offsets(TopicPartition(*place), DEADLINE_S))
        except KafkaException as error:
            if error.args[0].code() not in MOVED:
                raise
            client.list_topics(place[0], DEADLINE_S)
        return bool(found)

    wait_until(is_answered, f"nobody tells where {place} ends")
    return found[0]
