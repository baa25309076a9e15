"""Kafka's own classes keep a transactional id as our core does, and read and write the same records of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from headrace.base.ids import NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, ProducerEpoch
from headrace.base.values import replaced
from headrace.coordinators.transactions import events as ev
from headrace.coordinators.transactions import records
from headrace.coordinators.transactions.model import (
    NO_PRODUCER_EPOCH,
    Standing,
    Terms,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.values import NamedPartition
from headrace.wire.errors import ErrorCode
from tests.coordinators.transactions.world import CONFIG, TV0, TV2, World
from tests.interop.support.asking import asked
from tests.tiers import of_tier
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

PROGRAM: Final = Path(__file__).parents[1] / "tools" / "Transactions.java"
HISTORIES: Final = of_tier(short=200, long=2_000)
STEPS: Final = 12
NAMES: Final = ("a0", "a1", "b0", "b7")

Put = Callable[[str], str]


@pytest.fixture(scope="module")
def java() -> Iterator[Put]:
    command = kafka_jars.compiled(PROGRAM, kafka_jars.newest_class_path())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with asked(subprocess.Popen(command, text=True, **pipes)) as put:  # type: ignore[call-overload]
        yield put


def told(standing: Standing) -> str:
    """The standing in the words of the program."""
    names = sorted(f"{each.topic}:{each.partition}" for each in standing.partitions)
    numbers = (
        *(standing.producer_id, standing.previous_producer_id, standing.producer_epoch, standing.last_producer_epoch),
        *(standing.timeout_ms, standing.started_ms, standing.updated_ms, int(standing.client_version)),
    )
    return " ".join((standing.state.title, *map(str, numbers), f"[{','.join(names)}]"))


def happened(before: Standing, after: Standing, request: ev.Event) -> str:
    """The thing that led from one to the other, as the program is told it."""
    now, version = after.updated_ms, int(after.client_version)
    if after.state is TransactionState.EMPTY:
        expected = request.expected if isinstance(request, ev.InitProducer) else None
        if after.producer_id != before.producer_id:
            return f"rotate {after.producer_id} {after.timeout_ms} {now} {int(expected is not None)}"
        return f"init {'-' if expected is None else expected.epoch} {after.timeout_ms} {now}"
    if after.state is TransactionState.ONGOING:
        names = ",".join(f"{each.topic}:{each.partition}" for each in after.partitions)
        return f"add {version} {now} {names}"
    if after.state.is_complete:
        return f"complete {now}"
    if not isinstance(request, ev.EndTransaction):
        return f"fence {version} {after.next_producer_id} {now}"
    empty = int(before.state is not TransactionState.ONGOING)
    return f"end {int(request.commit)} {version} {after.next_producer_id} {now} {empty}"


class History:
    """Random requests to one transactional id, by a client that knows what it was answered."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.version = random.choice((TV0, TV2))
        server = random.choice((TV0, TV2))
        self.world = World(terms=Terms(coordinator_epoch=1, version=server, config=CONFIG))
        self.world.begun()
        found = self.world.transactions["t"]
        epoch = random.choice((0, 7, PRODUCER_EPOCH_MAX - 4, PRODUCER_EPOCH_MAX - 2, PRODUCER_EPOCH_MAX - 1))
        self.first = replaced(found.standing, producer_epoch=ProducerEpoch(epoch), previous_producer_id=NO_PRODUCER_ID)
        self.world.transactions["t"] = replaced(found, standing=self.first)

    def request(self) -> ev.Event:
        random, waiter, now = self.random, next(self.world.waiters), self.world.standing()
        match 0 if now.producer_epoch == PRODUCER_EPOCH_MAX else random.randrange(8):
            case 0:
                return ev.InitProducer(waiter=waiter, timeout_ms=random.randrange(1, 900_000))
            case 1:
                last = replaced(now, producer_epoch=now.last_producer_epoch).producer
                # Kafka fails where a client repeats the bump to the last epoch; we answer it
                is_repeatable = now.last_producer_epoch >= 0 and not now.producer.is_exhausted
                expected = random.choice((now.producer, last)) if is_repeatable else now.producer
                return ev.InitProducer(waiter=waiter, timeout_ms=60_000, expected=expected)
            case 2:
                return ev.Tick()
            case 3 | 4:
                commit = random.random() < 0.6
                return ev.EndTransaction(
                    waiter=waiter, producer=now.producer, commit=commit, client_version=self.version
                )
            case _:
                chosen = random.sample(NAMES, random.randrange(1, 4))
                parts = frozenset(NamedPartition(name[0], int(name[1])) for name in chosen)
                return ev.AddPartitions(
                    waiter=waiter, producer=now.producer, partitions=parts, client_version=self.version
                )

    def records_of(self, request: ev.Event) -> list[tuple[Standing, ev.Event]]:
        """Send it. Return the records, each with the event that led to it, for a timeout may have come first."""
        seen = len(self.world.effects_seen)
        self.world.advance(1_000_000 if isinstance(request, ev.Tick) else self.random.choice((0, 1, 500)))
        timed_out = len(self.world.effects_seen)
        self.world.send("t", request)
        return [
            (effect.record.standing, request if at >= timed_out else ev.Tick())
            for at, effect in enumerate(self.world.effects_seen)
            if at >= seen and isinstance(effect, ev.Append) and isinstance(effect.record, ev.TransactionStands)
        ]


def test_kafkas_metadata_goes_through_the_same_transitions_and_writes_the_same_records(java: Put) -> None:
    seen: set[tuple[TransactionState, TransactionState, TransactionVersion]] = set()
    rotated = 0
    for seed in range(HISTORIES):
        history = History(Random(seed))
        before = history.first
        java(f"new {before.producer_id} {before.producer_epoch} {before.timeout_ms} {before.updated_ms}")
        for _ in range(STEPS):
            for after, request in history.records_of(history.request()):
                after.validate()
                what = happened(before, after, request)
                answer, _, record = java(what).rpartition(" ")
                assert answer == told(after), f"seed {seed}: {what}"
                key, value = records.encode(ev.TransactionStands("t", after), TV2)
                assert value is not None
                durable = replaced(after, last_producer_epoch=NO_PRODUCER_EPOCH)
                assert records.decode(key, bytes.fromhex(record)) == ev.TransactionStands("t", durable)
                assert len(value) == len(record) // 2
                assert java(f"read {key.hex()} {value.hex()}") == told(durable)
                seen.add((before.state, after.state, after.client_version))
                rotated += after.producer_id != before.producer_id
                before = after
    assert rotated > 10
    assert len(seen) > 15


def test_kafka_refuses_what_we_refuse(java: Put) -> None:
    """A client that shows neither the present epoch nor the one before is fenced."""
    history = History(Random(1))
    first = history.first
    java(f"new {first.producer_id} 3 {first.timeout_ms} {first.updated_ms}")
    assert java(f"init 1 60000 {first.updated_ms}").startswith("failed org.apache.kafka.common.errors.ProducerFenced")
    found = history.world.transactions["t"]
    history.world.transactions["t"] = replaced(found, standing=replaced(first, producer_epoch=ProducerEpoch(3)))
    old = replaced(first, producer_epoch=ProducerEpoch(1)).producer
    assert history.world.error(history.world.init(expected=old)) is ErrorCode.PRODUCER_FENCED
