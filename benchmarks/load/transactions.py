"""Cases of transactions: `make bench-transactions`. All run on three brokers, with three copies of each partition.

Producers and consumers are librdkafka's. Each producer has a thread of this process, and one transaction at a time. The
recovery of open transactions is asked for by raw links, because ten thousand clients would be all that is measured.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.load.cases import (
    ANSWER_TIMEOUT_S,
    MEGABYTE,
    About,
    Better,
    Entrant,
    Figures,
    Target,
    count,
    make_topic,
    portion,
    topic_on,
)
from benchmarks.load.clusters import BROKERS, HEADRACE_CLUSTER, KAFKA_CLUSTER, Cluster
from benchmarks.load.groups import set_durability
from benchmarks.load.raw.raw_links import LEADER_POLL_S, Link
from benchmarks.load.rivals import Durability
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from headrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from headrace.wire.messages.end_txn import EndTxnRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest

PARTITIONS: Final = 3
RECORDS: Final = 10
"""In each transaction, over all partitions."""
RECORD_BYTES: Final = 100
STATE_TOPIC: Final = "__transaction_state"
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The most that both allow by default."""
FIND_VERSION: Final = 4
INIT_VERSION: Final = 4
ADD_VERSION: Final = 3
END_VERSION: Final = 3
DESCRIBE_VERSION: Final = 0
TRANSACTIONAL: Final = 1
"""The type of a coordinator's key."""
ASKED_AT_ONCE: Final = 500
LINKS: Final = 16
RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
RECOVERY_TIMEOUT_S: Final = 180.0
FILLED_RECORD_BYTES: Final = 1_000
FILLED_AT_ONCE: Final = 1_000
READS: Final = 3
"""Of each isolation level in a run, in turns."""
CONSUMED_AT_ONCE: Final = 10_000
CONSUME_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """So many transactions by some producers; the rate is transactions a second, and a commit's time is told beside."""

    about: About
    producers: int
    transactions: int

    def run(self, entrant: Entrant) -> Figures:
        keep_state(entrant)
        with topic_on(entrant, self.about.name, PARTITIONS) as topic, ThreadPoolExecutor(self.producers) as threads:
            makers = list(threads.map(lambda _: _producer(entrant), range(self.producers)))
            together, each = threading.Barrier(self.producers), self.transactions // self.producers
            work = [threads.submit(_transact, maker, topic, each, together) for maker in makers]
            done = [each.result() for each in work]
            commits = list(itertools.chain.from_iterable(times for _, _, times in done))
            _await_end(entrant, topic, len(commits) * (RECORDS + PARTITIONS))
        seconds = max(ended for _, ended, _ in done) - min(begun for begun, _, _ in done)
        cuts = statistics.quantiles(commits, n=100)
        others = {"latency_p50_ms": cuts[49] * 1000, "latency_p99_ms": cuts[98] * 1000}
        return Figures(rate=len(commits) / seconds, others=others)

    def scaled(self, factor: float) -> Transactions:
        return replace(self, transactions=max(2 * self.producers, portion(self.transactions, factor)))


def _await_end(entrant: Entrant, topic: str, expected: int) -> None:
    """Wait for all records and markers: a commit of the old protocol is answered before the markers are written."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while (held := count(entrant.rival.bootstrap, topic, PARTITIONS)) != expected:
        assert time.monotonic() < deadline, f"{held} records and markers are there, {expected} were committed"
        time.sleep(LEADER_POLL_S)


def _producer(entrant: Entrant) -> Producer:
    """Return one whose transactional id is its own, and known to the coordinator."""
    settings = {
        "bootstrap.servers": entrant.rival.bootstrap,
        "transactional.id": uuid.uuid4().hex,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "linger.ms": 0,
        "log_level": 0,
    }
    made = Producer(settings)
    made.init_transactions(ANSWER_TIMEOUT_S)
    return made


def _transact(
    producer: Producer, topic: str, transactions: int, together: threading.Barrier
) -> tuple[float, float, list[float]]:
    """Return when it began and ended, and the seconds of each commit."""
    value, commits = bytes(RECORD_BYTES), []
    together.wait(ANSWER_TIMEOUT_S)
    begun = time.perf_counter()
    for _ in range(transactions):
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(topic, value, partition=number % PARTITIONS)
        asked = time.perf_counter()
        producer.commit_transaction(ANSWER_TIMEOUT_S)
        commits.append(time.perf_counter() - asked)
    return begun, time.perf_counter(), commits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommitted:
    """A topic of transactions is read whole at both isolation levels, in turns; the rate is that of read_committed."""

    about: About
    records: int

    def run(self, entrant: Entrant) -> Figures:
        keep_state(entrant)
        topic = self._filled(entrant)
        levels = ("read_uncommitted", "read_committed")
        _read_all(entrant.rival.bootstrap, topic, levels[0], self.records)  # all is in the page cache
        seconds = dict.fromkeys(levels, 0.0)
        for turn in range(READS):
            for level in levels[:: 1 if turn % 2 == 0 else -1]:
                seconds[level] += _read_all(entrant.rival.bootstrap, topic, level, self.records)
        megabytes = self.records * FILLED_RECORD_BYTES / MEGABYTE
        rates = {level: megabytes * READS / seconds[level] for level in levels}
        others = {
            "read_uncommitted_mb_s": rates["read_uncommitted"],
            "uncommitted_by_committed": rates["read_uncommitted"] / rates["read_committed"],
        }
        return Figures(rate=rates["read_committed"], others=others, megabytes=megabytes * (2 * READS + 1))

    def _filled(self, entrant: Entrant) -> str:
        """Return the topic of this rival, which is filled once."""
        topic = f"{self.about.name}-{self.records}"
        admin = AdminClient({"bootstrap.servers": entrant.rival.bootstrap, "log_level": 0})
        if topic not in admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics:
            make_topic(entrant, topic, PARTITIONS)
            producer, value = _producer(entrant), bytes(FILLED_RECORD_BYTES)
            for _ in range(self.records // FILLED_AT_ONCE):
                producer.begin_transaction()
                for number in range(FILLED_AT_ONCE):
                    producer.produce(topic, value, partition=number % PARTITIONS)
                producer.commit_transaction(ANSWER_TIMEOUT_S)
        return topic

    def scaled(self, factor: float) -> ReadCommitted:
        return replace(self, records=FILLED_AT_ONCE * portion(self.records // FILLED_AT_ONCE, factor))


def _read_all(bootstrap: str, topic: str, isolation: str, records: int) -> float:
    """Seconds from the assignment until all records were read and every partition's end was told."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "benchmark",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "log_level": 0,
    }
    reader = Consumer(settings)
    try:
        begun, read, ended = time.perf_counter(), 0, set[int]()
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            for message in reader.consume(CONSUMED_AT_ONCE, CONSUME_S):
                if (error := message.error()) is None:
                    read += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(cast("int", message.partition()))
            assert time.perf_counter() < begun + ANSWER_TIMEOUT_S, f"{read} of {records} records were read"
        assert read == records, f"{read} of {records} records were read"
        return time.perf_counter() - begun
    finally:
        reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from the SIGKILL of the broker that coordinates most of so many open transactions. It ends when other
    brokers tell of each of them that it is open."""

    about: About
    transactions: int

    def run(self, entrant: Entrant) -> Figures:
        keep_state(entrant)
        cluster = cast("Cluster", entrant.rival)
        ids = [uuid.uuid4().hex for _ in range(self.transactions)]
        with topic_on(entrant, self.about.name, PARTITIONS) as topic:
            with ThreadPoolExecutor(LINKS) as threads:
                work = [threads.submit(_open, cluster.bootstrap, topic, ids[at::LINKS]) for at in range(LINKS)]
                opened = {name: each for done in work for name, each in done.result().items()}
            where = coordinators_of(cluster.bootstrap, ids)
            (address, led), *_ = Counter(where.values()).most_common(1)
            victim = next(node for node, at in cluster.bootstraps.items() if at == address)
            others = ",".join(at for node, at in cluster.bootstraps.items() if node != victim)
            begun = time.perf_counter()
            cluster.kill(victim)
            _await_open(others, ids)
            seconds = time.perf_counter() - begun
            cluster.restart(victim)
            with ThreadPoolExecutor(LINKS) as threads:
                parts = [{each: opened[each] for each in ids[at::LINKS]} for at in range(LINKS)]
                for ended in [threads.submit(_abort, cluster.bootstrap, part) for part in parts]:
                    ended.result()
        return Figures(rate=seconds, others={"of_the_killed_broker": led})

    def scaled(self, factor: float) -> Recovery:
        return replace(self, transactions=max(LINKS, portion(self.transactions, factor)))


def _open(bootstrap: str, topic: str, ids: Sequence[str]) -> Mapping[str, tuple[int, int]]:
    """Begin a transaction of each, and return their producer ids and epochs."""
    found = {}
    partitions = (AddPartitionsToTxnTopic(topic, tuple(range(PARTITIONS))),)
    with Coordinators(bootstrap, ids) as coordinators:
        for name in ids:
            wanted = InitProducerIdRequest(name, TRANSACTION_TIMEOUT_MS)
            begun = coordinators.ask(name, ApiKey.INIT_PRODUCER_ID, INIT_VERSION, wanted)
            found[name] = (begun.producer_id, begun.producer_epoch)
            added = AddPartitionsToTxnRequest((), name, *found[name], partitions)
            coordinators.ask(name, ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, added)
    return found


def _abort(bootstrap: str, opened: Mapping[str, tuple[int, int]]) -> None:
    with Coordinators(bootstrap, list(opened)) as coordinators:
        for name, producer in opened.items():
            coordinators.ask(name, ApiKey.END_TXN, END_VERSION, EndTxnRequest(name, *producer, committed=False))


def _await_open(bootstrap: str, ids: Sequence[str]) -> None:
    """Wait until each has a coordinator that tells of it that it is open."""
    deadline, left = time.monotonic() + RECOVERY_TIMEOUT_S, set(ids)
    while left:
        found = coordinators_of(bootstrap, sorted(left))
        for address in set(found.values()):
            told = _open_at(address, [name for name, at in found.items() if at == address])
            left.difference_update(told)
        assert time.monotonic() < deadline, f"{len(left)} transactions have no coordinator"
        if left:
            time.sleep(LEADER_POLL_S)


def _open_at(address: str, ids: Sequence[str]) -> Sequence[str]:
    """Return those of which this broker tells that they are open."""
    try:
        link = Link(address)
    except ConnectionError:
        return ()  # the broker that was killed is still named
    found = []
    for names in portions(ids):
        told = link.ask(_codec(ApiKey.DESCRIBE_TRANSACTIONS), DESCRIBE_VERSION, DescribeTransactionsRequest(names))
        states = [each for each in told.transaction_states if error_of(each.error_code) is ErrorCode.NONE]
        assert {each.transaction_state for each in states} <= {"Ongoing"}, states[:3]
        found += [each.transactional_id for each in states]
    link.close()
    return found


def coordinators_of(bootstrap: str, ids: Sequence[str]) -> dict[str, str]:
    """Return HOST:PORT by id, for those that have one."""
    link, found = Link(bootstrap.partition(",")[0]), {}
    for names in portions(ids):
        request = FindCoordinatorRequest(key_type=TRANSACTIONAL, coordinator_keys=names)
        for each in link.ask(_codec(ApiKey.FIND_COORDINATOR), FIND_VERSION, request).coordinators:
            if error_of(each.error_code) is ErrorCode.NONE:
                found[each.key] = f"{each.host}:{each.port}"
    link.close()
    return found


def await_coordinators(bootstrap: str, ids: Sequence[str]) -> dict[str, str]:
    """As `coordinators_of`, once all of them have one."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while len(where := coordinators_of(bootstrap, ids)) < len(ids):
        assert time.monotonic() < deadline, "some transactions have no coordinator"
        time.sleep(LEADER_POLL_S)
    return where


class Coordinators:
    """Links to the coordinators of some transactional ids, one to each broker. A context manager."""

    def __init__(self, bootstrap: str, ids: Sequence[str]) -> None:
        where = await_coordinators(bootstrap, ids)
        links = {address: Link(address) for address in set(where.values())}
        self._links = {name: links[address] for name, address in where.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for link in set(self._links.values()):
            link.close()

    def ask(self, name: str, key: ApiKey, version: int, request: Any) -> Any:
        """Ask the coordinator of this id until it gives no error."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while errors := _errors(answer := self._links[name].ask(_codec(key), version, request)):
            assert errors <= RETRIABLE, f"{key.name} was answered with {errors}"
            assert time.monotonic() < deadline, f"{key.name} is still answered with {errors}"
            time.sleep(LEADER_POLL_S)
        return answer


def _errors(answer: Any) -> set[ErrorCode]:
    if isinstance(answer, AddPartitionsToTxnResponse):
        topics = answer.results_by_topic_v3_and_below
        found = {error_of(each.partition_error_code) for topic in topics for each in topic.results_by_partition}
    else:
        found = {error_of(answer.error_code)}
    return found - {ErrorCode.NONE}


def portions(ids: Sequence[str]) -> list[tuple[str, ...]]:
    """As many as are asked for at once."""
    return [tuple(ids[at : at + ASKED_AT_ONCE]) for at in range(0, len(ids), ASKED_AT_ONCE)]


def keep_state(entrant: Entrant) -> None:
    """Have the topic of the transactions' state mean by an acknowledgement what is asked for."""
    await_coordinators(entrant.rival.bootstrap, ["any"])  # the topic is made at the first question
    set_durability(entrant, STATE_TOPIC)


def _codec(key: ApiKey) -> Api:
    known = api(int(key))
    assert known is not None
    return known


def _about(name: str, title: str, unit: str, better: Better, ours: Durability) -> About:
    suffix = "" if ours is Durability.FSYNC else "-page-cache"
    return About(
        name=f"transactions-{name}{suffix}",
        title=f"{title}; three replicas",
        unit=unit,
        who=HEADRACE_CLUSTER,
        against=KAFKA_CLUSTER,
        ours=ours,
        target=Target(1.0, better),
        cost_targets={},
        replicas=BROKERS,
    )


def _transactions(producers: int, transactions: int, ours: Durability) -> Transactions:
    title = (
        f"transactions of {RECORDS} records of {RECORD_BYTES} B over {PARTITIONS} partitions, producers: {producers}"
    )
    about = _about(str(producers), title, "transactions/s", Better.HIGHER, ours)
    about = replace(about, more_targets={"latency_p99_ms": Target(1.0, Better.LOWER)})
    return Transactions(about=about, producers=producers, transactions=transactions)


def _reads() -> ReadCommitted:
    title = f"transactions of {FILLED_AT_ONCE} records of {FILLED_RECORD_BYTES} B, read with read_committed"
    about = _about("read", title, "MB/s", Better.HIGHER, Durability.PAGE_CACHE)
    most = Target(1.0, Better.LOWER, most=1 / 0.95)
    return ReadCommitted(about=replace(about, more_targets={"uncommitted_by_committed": most}), records=300_000)


def _recovery() -> Recovery:
    title = "10,000 open transactions: from the SIGKILL of a coordinator until others tell of them all"
    about = _about("recovery", title, "s", Better.LOWER, Durability.FSYNC)
    return Recovery(about=replace(about, restarts=True, warms_up=False), transactions=10_000)


TRANSACTIONS: Final[tuple[Transactions | ReadCommitted | Recovery, ...]] = (
    *(
        _transactions(producers, count, ours)
        for ours in (Durability.PAGE_CACHE, Durability.FSYNC)
        for producers, count in ((1, 150), (8, 600), (64, 1_280))
    ),
    _reads(),
    _recovery(),
)
"""`make bench-transactions`; `make bench` leaves them out."""
