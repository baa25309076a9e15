"""Compacted durable history with transactions, as the Java client, librdkafka and Spark's reader see it.

All three read one and the same, under both isolation levels, before and after each round of compaction. Under
read_committed no last value of a key is missing. Records of aborted transactions and their markers go.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from headrace.base.ids import PartitionIndex
from headrace.cli.work.durable_views import merge
from headrace.storage.tier.reader import Store
from tests.interop import java_project
from tests.interop.support.asking import asked
from tests.promises.support.load import QUIET
from tests.spark.world import Row, World, consumed, read, world

WAIT_S = 150.0
KEYS = 6
ROUNDS = 4
"""Records go in the first, the time of markers begins in the second, and they go in the third. Nothing is left to do in
the last."""
CONFIGS = {"transaction.state.log.num.partitions": "1", "transaction.state.log.replication.factor": "1"}
COMPACTED = {
    "cleanup_policy": "compact",
    "delete_retention_ms": "0",
    "durable_compacted_enable": "true",
    "durable_enable": "true",
    "durable_export_max_lag_ms": "0",
    "min_compaction_lag_ms": str(2**63 - 1),
    "segment_bytes": "2048",
}
ISOLATIONS = ("read_committed", "read_uncommitted")

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


def written(made: World) -> set[bytes]:
    """Write transactions that lie in one another. Returns the values of those that are aborted."""
    random, aborted = Random(7), set[bytes]()
    servers = {"bootstrap.servers": made.bootstrap, "linger.ms": 0, **QUIET}
    producers = [Producer({**servers, "transactional.id": f"p{number}"}) for number in range(3)]
    plain, waiting = Producer(servers), dict[Producer, list[bytes]]()
    for each in producers:
        each.init_transactions(WAIT_S)
        each.begin_transaction()
    for number in range(150):
        chosen = random.choice([*producers, plain])
        value = b"%d " % number + b"v" * random.randrange(200)
        deletes = random.random() < 0.2
        chosen.produce("t", None if deletes else value, key=b"key %d" % random.randrange(KEYS), partition=0)
        assert chosen.flush(WAIT_S) == 0
        waiting.setdefault(chosen, []).append(value)
        if chosen is not plain and (random.random() < 0.25 or number > 140):
            commits = random.random() < 0.5
            (chosen.commit_transaction if commits else chosen.abort_transaction)(WAIT_S)
            aborted |= set() if commits else set(waiting[chosen])
            del waiting[chosen]
            chosen.begin_transaction()
    for each in producers:
        each.abort_transaction(WAIT_S)
        aborted |= set(waiting.get(each, []))
    plain.produce("t", b"the last", key=b"last", partition=0)
    assert plain.flush(WAIT_S) == 0
    return aborted


def digest(rows: Iterable[Row]) -> str:
    found = hashlib.sha256()
    for _, _, offset, _, _, key, value, _ in rows:
        found.update(b"%d %s %s\n" % (offset, key or b"", b"null" if value is None else value))
    return found.hexdigest()


def table(rows: Iterable[Row]) -> dict[bytes | None, bytes]:
    found = dict[bytes | None, bytes]()
    for *_, key, value, _ in rows:
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def history(made: World) -> tuple[int, int]:
    """The start of its last segment, which is never compacted, and the number of markers below; all of it proven."""
    store = Store.open(made.store)
    topic, zero = store.topic("t"), PartitionIndex(0)
    found, last = store.verify(topic, zero), store.catalog(topic, zero).last_start
    headers = (header for _, header in store.batches(topic, zero, found.start_offset, last))
    return last, sum(header.is_control and header.count > 0 for header in headers)


@contextmanager
def java(made: World) -> Iterator[Callable[[str], str]]:
    command = [*java_project.built(), "headrace.interop.Main", made.bootstrap]
    with asked(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as put:
        yield put


def seen(made: World, ask: Callable[[str], str]) -> list[list[Row]]:
    """The rows under each isolation level, which all clients read alike."""
    found = []
    for isolation in ISOLATIONS:
        rows = consumed(made.bootstrap, ["t"], isolation=isolation)
        assert ask(f"digest t {isolation} {digest(rows)}") == "ok"
        assert read(made.options("t", bootstrap="", isolation=isolation)) == rows
        found.append(rows)
    return found


def test_compaction_takes_what_was_aborted_and_no_client_misses_anything(tmp_path: Path) -> None:
    with world(tmp_path, **CONFIGS) as made:
        made.create("t", 1, **COMPACTED)
        aborted = written(made)
        end = made.exported("t", consumed(made.bootstrap, ["t"])[-1][2] + 1)
    shutil.rmtree(tmp_path / "data" / "logs" / "t-0")  # from now on, all is read from history
    with world(tmp_path, **CONFIGS) as made, java(made) as ask:
        committed, everything = seen(made, ask)
        last, markers = history(made)
        assert everything[-1][2] == end - 1
        assert len(committed) + 20 < len(everything)
        assert markers > 20
        for number in range(ROUNDS):
            merged = asyncio.run(merge(made.bootstrap, "t", None, execute=True))
            assert merged.problems == []
            left, all_left = seen(made, ask)
            assert table(left) == table(committed)
            assert set(left) <= set(committed)
            assert set(all_left) <= set(everything)
            assert [row for row in all_left if row[2] < last and row[6] in aborted] == []
            assert history(made)[0] == last
            assert (history(made)[1] < markers) is (number >= 2)
        keys = [row[5] for row in left if row[2] < last]
        assert len(keys) == len(set(keys))
        assert history(made)[1] <= len(keys)
