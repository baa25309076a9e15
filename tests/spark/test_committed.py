"""Rows of committed transactions alone, as librdkafka reads them: from the store, from brokers, and from both."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.net.client.transactions import Transactions
from headrace.spark.options import parse_options
from headrace.spark.pipelines.audit.brokers import problems_beside
from headrace.spark.pipelines.audit.examining import examine
from headrace.spark.read import reading
from headrace.spark.read.committed import Hidden, HiddenInAnswer, HiddenInStore
from headrace.spark.read.extent import Sources
from headrace.spark.read.follow import Follower, Limits
from headrace.spark.read.reading import StillOpenError
from headrace.storage.tier.format import SegmentFooter, decode_footer
from headrace.storage.tier.marked import TransactionCheck
from headrace.storage.tier.packed import batches_of
from headrace.storage.tier.reader import Store
from tests.promises.support.load import QUIET
from tests.spark.world import World, consumed, planned, read, world

WAIT_S = 150.0
PRODUCERS = 3


class Writers:
    """Producers of transactions, which commit or abort at random, and one that has none."""

    def __init__(self, made: World, seed: int) -> None:
        self._random = Random(seed)
        servers = {"bootstrap.servers": made.bootstrap, "linger.ms": 0, **QUIET}
        self._all = [Producer({**servers, "transactional.id": f"p{number}"}) for number in range(PRODUCERS)]
        for each in self._all:
            each.init_transactions(WAIT_S)
            each.begin_transaction()
        self._plain = Producer(servers)

    def write(self, count: int) -> None:
        for number in range(count):
            chosen = self._random.choice([*self._all, self._plain])
            for _ in range(self._random.randrange(1, 4)):
                chosen.produce("t", self._random.randbytes(300), key=b"%d" % number, partition=0)
            assert chosen.flush(WAIT_S) == 0
            if chosen is not self._plain and self._random.random() < 0.3:
                self.end(chosen)
                chosen.begin_transaction()

    def end(self, one: Producer) -> None:
        (one.commit_transaction if self._random.random() < 0.5 else one.abort_transaction)(WAIT_S)

    def end_all(self) -> None:
        for each in self._all:
            self.end(each)


CONFIGS = {"transaction.state.log.num.partitions": "1", "transaction.state.log.replication.factor": "1"}


@pytest.mark.parametrize("local", ["0", "-2"], ids=["history", "both"])
def test_rows_are_those_that_a_consumer_of_committed_records_gets(tmp_path: Path, local: str) -> None:
    with world(tmp_path, **CONFIGS) as made:
        made.create("t", segment_bytes="4096", local_retention_bytes=local)
        writers = Writers(made, seed=8)
        writers.write(80)
        every = {"store": "", "bootstrap": made.bootstrap}
        for options in (made.options("t"), made.options("t", **every)):
            assert read(options) == consumed(made.bootstrap, ["t"])  # to the last stable offset
        writers.end_all()
        wanted = consumed(made.bootstrap, ["t"])
        everything = consumed(made.bootstrap, ["t"], isolation="read_uncommitted")
        assert 40 < len(wanted) < len(everything) - 40
        for options in (made.options("t"), made.options("t", maxBytesPerPartition="3000"), made.options("t", **every)):
            assert read(options) == wanted
            assert read({**options, "isolation": "read_uncommitted"}) == everything
        end = made.exported("t", 100)
        alone = {"bootstrap": ""}
        assert read(made.options("t", **alone)) == [row for row in wanted if row[2] < end]
        assert_sound(made)
        some = read(made.options("t", **alone, startingOffsets='{"t": {"0": 37}}', endingOffsets='{"t": {"0": 90}}'))
        assert some == [row for row in wanted if 37 <= row[2] < 90]


def assert_sound(made: World) -> None:
    """As an audit finds it."""
    store = Store.open(made.store)
    before, told = None, 0
    for entry in store.catalog(store.topic("t"), PartitionIndex(0)):
        assert examine(entry.descriptor, store.objects, before).problems == []
        footer = store.footer("t", 0, entry.descriptor)
        lacking = replace(footer, aborted_transactions=())
        found = list(TransactionCheck().problems(lacking, batches_in(store, entry.descriptor), is_thinned=False))
        told += bool(found)
        before = entry.descriptor
    assert told  # where nothing is known of the segments before: those that begin and end in one


def batches_in(store: Store, segment: SegmentDescriptor) -> bytes:
    body = store.objects.get(segment.key)
    return bytes(batches_of(body, decode_footer(body)))


def test_a_transaction_hangs_that_no_coordinator_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(made: World) -> list[str]:
        sources = Sources(parse_options(made.options("t"), streaming=False))
        try:
            (topic,) = sources.topics()
            catalog = PartitionCatalog.empty(topic.id, PartitionIndex(0))
            return problems_beside(sources, topic, PartitionIndex(0), catalog)[0]
        finally:
            sources.close()

    async def nobody(_: Transactions) -> tuple[()]:
        return ()

    with world(tmp_path, **CONFIGS) as made:
        made.create("t")
        one = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": "one", **QUIET})
        one.init_transactions(WAIT_S)
        one.begin_transaction()
        one.produce("t", b"v", partition=0)
        assert one.flush(WAIT_S) == 0
        assert found(made) == []
        with monkeypatch.context() as planted:
            planted.setattr(Transactions, "list_all", nobody)
            (problem,) = found(made)
            assert "hangs, open from offset 0 on" in problem
            one.commit_transaction(WAIT_S)
            assert found(made) == []


def test_a_stream_does_not_pass_the_last_stable_offset(tmp_path: Path) -> None:
    with world(tmp_path, **CONFIGS) as made:
        made.create("t")
        one = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": "one", **QUIET})
        one.init_transactions(WAIT_S)
        for commit in (True, False):
            one.begin_transaction()
            one.produce("t", b"v", partition=0)
            assert one.flush(WAIT_S) == 0
            (one.commit_transaction if commit else lambda _: None)(WAIT_S)
        options = made.options("t", startingOffsets="earliest", store="")
        follower = Follower(parse_options(options, streaming=True))
        beyond = Follower(parse_options({**options, "isolation": "read_uncommitted"}, streaming=True))
        try:
            first = follower.initial()
            end = follower.latest(first, Limits())
            assert end["t"]["0"] == 2
            further = beyond.latest(first, Limits())
            assert further["t"]["0"] == 3
            assert follower.latest(further, Limits()) == further  # a checkpoint from before: nothing is lost
            one.abort_transaction(WAIT_S)
            assert follower.latest(end, Limits())["t"]["0"] == 4
        finally:
            follower.close()
            beyond.close()


@pytest.mark.parametrize("loses", ["true", "false"])
def test_offsets_behind_an_open_transaction_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    """They were planned by a reader of everything, and are read by one of committed records, as by a stream that starts
    again."""
    monkeypatch.setattr(reading, "SPARK_EMPTY_FETCHES_MAX", 1)
    with world(tmp_path, **CONFIGS) as made:
        made.create("t")
        one = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": "one", **QUIET})
        one.init_transactions(WAIT_S)
        one.begin_transaction()
        one.produce("t", b"v", partition=0)
        assert one.flush(WAIT_S) == 0
        options = made.options("t", failOnDataLoss=loses)
        tasks = planned({**options, "isolation": "read_uncommitted"})
        with pytest.raises(StillOpenError, match=r"0 to 1 .* a transaction is open at offset 0: restart") as raised:
            read(options, tasks)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        one.commit_transaction(WAIT_S)
        assert [row[2] for row in read(options, tasks)] == [0]


def test_a_reader_that_filters_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: rows are made of all batches that are no markers."""

    def hides(self: Hidden, view: object, at: int, header: object) -> bool:
        return bool(header.is_control)  # type: ignore[attr-defined]

    with world(tmp_path, **CONFIGS) as made:
        made.create("t", segment_bytes="4096", local_retention_bytes="0")
        writers = Writers(made, seed=8)
        writers.write(30)
        writers.end_all()
        wanted = consumed(made.bootstrap, ["t"])
        assert read(made.options("t")) == wanted
        for kind in (HiddenInStore, HiddenInAnswer):
            monkeypatch.setattr(kind, "hides", hides)
        assert read(made.options("t")) != wanted


def test_the_store_is_asked_for_no_footer_where_there_is_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as made:
        made.create("t", segment_bytes="4096")
        plain = Producer({"bootstrap.servers": made.bootstrap, **QUIET})
        for _ in range(40):
            plain.produce("t", bytes(300), partition=0)
            assert plain.flush(WAIT_S) == 0
        made.exported("t", 30)
        options = made.options("t", bootstrap="", columns="offset")
        tasks = planned(options)
        asked: list[object] = []
        footer = Store.footer

        def noted(store: Store, topic: str, partition: int, segment: SegmentDescriptor) -> SegmentFooter:
            asked.append(segment)
            return footer(store, topic, partition, segment)

        monkeypatch.setattr(Store, "footer", noted)
        assert len(read(options, tasks)) >= 30
        assert asked == []


@pytest.mark.parametrize("text", ["committed", "", "READ-COMMITTED"])
def test_another_isolation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="read_committed or read_uncommitted"):
        parse_options({"store": "file:///x", "topic": "t", "isolation": text})
