"""Kafka's own log takes, refuses and remembers the same transactions as ours does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.base.ids import LeaderEpoch, Offset
from headrace.replica.producers import Duplicate, ProducerStates, Refuse
from headrace.replica.transactions import CompletedTransaction, Guard
from headrace.storage.disk import LocalDisk
from headrace.storage.engine.identity import LogConfig
from headrace.storage.log.engine import LocalLogEngine
from headrace.wire.batches import check_batches, encode_batch, parse_header
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record
from headrace.wire.transactions import EndMarker, decode_marker, encode_marker
from tests.interop.support.kafka_log import KafkaLog
from tests.storage.log.log_world import IDENTITY
from tests.tiers import long_only
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

ROUNDS = int(os.environ.get("HEADRACE_PROMISE_ROUNDS", "2"))
SEED = int(os.environ.get("HEADRACE_SEED", "33"))
STEPS = 300
SEGMENT_BYTES = 1024 * 1024
TIME = 1_700_000_000_000
EXCEPTIONS = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "InvalidProducerEpochException",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "TransactionCoordinatorFencedException",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaLog]:
    with KafkaLog() as asked:
        yield asked


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("epochs", [(0, 0), (32767, 2**31 - 1)])
def test_a_marker_has_kafkas_very_bytes(kafka: KafkaLog, committed: bool, epochs: tuple[int, int]) -> None:
    marker = EndMarker(committed, epochs[1])
    made = encode_marker(2**40, epochs[0], marker, timestamp=TIME)
    assert kafka.ask("marker", 2**40, epochs[0], committed, epochs[1], TIME) == made.hex()
    assert decode_marker(made) == marker


@long_only
def test_a_marker_is_taken_and_refused_as_the_newest_kafka_does() -> None:
    """Also by a leader that took its state from a snapshot (KIP-1228, which Kafka 4.1 does not have)."""
    program = Path(__file__).parents[1] / "tools" / "MarkerRule.java"
    command = kafka_jars.compiled(program, kafka_jars.newest_class_path())
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(told) == 96
    marked = EndMarker(True, 0)
    for line in told:
        *numbers, answer = line.split()
        known, is_open, epoch, version, coordinator = map(int, numbers)
        states = ProducerStates()
        states.on_marker(parse_header(encode_marker(7, known, marked, timestamp=TIME)), marked, Offset(0), TIME)
        if is_open:
            states.on_appended(parse_header(data(7, known, 0, 1, transactional=True)), Offset(1), TIME)
        for each in (states, ProducerStates.restore(states.snapshot())):
            verdict = each.check_marker(7, epoch, coordinator, bumps_epochs=version >= 2)
            assert (EXCEPTIONS[verdict.error] if isinstance(verdict, Refuse) else "NONE") == answer, line


class Both:
    """One log in Kafka's classes, and our state of its producers; each step is done to both and compared."""

    def __init__(self, kafka: KafkaLog, directory: Path, random: Random, *, verifies: bool) -> None:
        self.kafka, self.random, self.verifies = kafka, random, verifies
        self.kafkas = directory / "kafka" / "orders-0"
        self.kafkas.parent.mkdir()
        assert kafka.ask("open", self.kafkas, SEGMENT_BYTES, verifies) == "0"
        engine = LocalLogEngine(LocalDisk(), directory / "ours")
        engine.start()
        self.log = engine.open(IDENTITY, LogConfig(segment_bytes=SEGMENT_BYTES, retention_ms=-1))
        self.states = ProducerStates()
        self.end = self.high_watermark = 0
        self.ends = [0]
        """Of all batches: whole ones are replicated."""
        self.guards: list[Guard | None] = [None]
        self.said: set[str] = set()
        self.completed: list[CompletedTransaction] = []

    def verify(self, producer: int, epoch: int, sequence: int) -> None:
        """Each producer speaks one protocol here. Kafka's guard is the same for a later epoch, whose client may speak
        another one. Ours is another guard, which takes the place of the earlier one."""
        bumps = producer % 2 == 0
        batch = parse_header(data(producer, epoch, sequence, 1, transactional=True))
        before = self.states.verifications.asked.get(producer)
        guard = self.states.begin_verification(batch, 0, bumps_epochs=bumps)
        if isinstance(guard, Refuse):
            assert self.kafka.ask("verify", producer, sequence, epoch, bumps) == guard.error.name
            return
        if guard not in self.guards and before is not None and guard is not None:
            assert epoch > before.epoch
            self.guards[self.guards.index(before.guard)] = guard
        elif guard not in self.guards:
            self.guards.append(guard)
        assert self.kafka.ask("verify", producer, sequence, epoch, bumps) == str(self.guards.index(guard))

    def append(self, producer: int, epoch: int, sequence: int, *, transactional: bool) -> None:
        batch = data(producer, epoch, sequence, self.random.randint(1, 3), transactional=transactional)
        number = len(self.guards) - 1 if self.random.random() < 0.8 else self.random.randrange(len(self.guards))
        header = parse_header(batch)
        verdict = self.states.check(header, self.guards[number], verifies=self.verifies)
        told = self.kafka.ask("append", batch.hex(), number)
        self.said.add(told.split(" ")[-1] if not told[0].isdigit() else "taken")
        if isinstance(verdict, Refuse):
            assert told == verdict.error.name
        elif isinstance(verdict, Duplicate):
            assert told == f"{verdict.base_offset} {verdict.last_offset} again"
        else:
            assert told == f"{self.end} {self.end + header.last_offset_delta}"
            self.log.append(batch, check_batches(batch), leader_epoch=LeaderEpoch(0), now_ms=TIME)
            self.states.on_appended(header, Offset(self.end), TIME)
            self.end += header.count
            self.ends.append(self.end)

    def decide(self, producer: int, epoch: int, marker: EndMarker) -> None:
        batch = encode_marker(producer, epoch, marker, timestamp=TIME)
        verdict = self.states.check_marker(producer, epoch, marker.coordinator_epoch)
        told = self.kafka.ask("decide", batch.hex())
        if isinstance(verdict, Refuse):
            self.said.add(told)
            assert told == verdict.error.name
            return
        assert told == f"{self.end} {self.end}"
        self.log.append(batch, check_batches(batch), leader_epoch=LeaderEpoch(0), now_ms=TIME)
        ended = self.states.on_marker(parse_header(batch), marker, Offset(self.end), TIME)
        if ended is not None:
            self.completed.append(ended)
            if ended.is_aborted:
                self.log.aborted.add(ended.aborted)
        self.end += 1
        self.ends.append(self.end)

    def replicate(self) -> None:
        self.high_watermark = self.random.choice([end for end in self.ends if end >= self.high_watermark])
        self.kafka.ask("replicated", self.high_watermark)

    def compare(self) -> None:
        stable = self.states.stable_end(Offset(self.high_watermark))
        assert self.kafka.ask("stable") == str(stable)
        start = self.random.randint(0, stable)
        end, _, aborted = self.kafka.ask("aborted", start).partition(":")
        told_by_kafka = aborted.split(",") if aborted else []
        needed, all_known = self.aborted(start, int(end)), self.aborted(start, self.end)
        assert [each for each in all_known if each in told_by_kafka] == told_by_kafka  # it looks a little further
        assert [each for each in told_by_kafka if each in needed] == needed
        restored = ProducerStates.restore(self.states.snapshot())
        for states in (self.states, restored):
            assert self.kafka.ask("producers") == told(states)

    def aborted(self, start: int, end: int) -> list[str]:
        found = self.log.aborted.between(Offset(start), Offset(end))
        return [f"{each.producer_id}@{each.first_offset}" for each in found]

    def close(self) -> None:
        """The files that both leave are the same, as far as transactions go."""
        self.log.write_producer_snapshot(self.states.snapshot(), self.log.log_end_offset)
        self.log.close()
        assert self.kafka.ask("snapshot", self.log.directory / f"{self.end:020d}.snapshot") == told(self.states)
        assert self.kafka.ask("close") == "closed"
        ours, kafkas = (
            [*map(Path.read_bytes, sorted(at.glob("*.txnindex")))] for at in (self.log.directory, self.kafkas)
        )
        assert b"".join(ours) == b"".join(kafkas) != b""


def told(states: ProducerStates) -> str:
    return ",".join(
        f"{each.producer_id}:{each.epoch}:{each.last_sequence}:{each.coordinator_epoch}:{each.transaction_start}"
        for each in sorted(states.entries())
    )


def data(producer: int, epoch: int, sequence: int, count: int, *, transactional: bool) -> bytes:
    return encode_batch(
        [Record(at, TIME, b"key", b"value") for at in range(count)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def near(random: Random, known: int) -> int:
    """Mostly the number itself, sometimes one beside it, never a negative one."""
    return max(0, known + random.choice([0, 0, 0, 0, 0, 1, -1]))


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_transactions_are_taken_and_refused_as_kafka_does(
    kafka: KafkaLog, tmp_path: Path, number: int, verifies: bool
) -> None:
    random = Random(SEED + number)
    both = Both(kafka, tmp_path, random, verifies=verifies)
    for step in range(STEPS):
        producer = random.randint(1, 4)
        known = next((each for each in both.states.entries() if each.producer_id == producer), None)
        epoch = near(random, 0 if known is None else known.epoch)
        sequence = 0 if known is None else known.last_sequence + 1
        if known is not None and (epoch != known.epoch or random.random() < 0.2):
            sequence = random.choice([0, max(0, known.last_sequence), sequence + 1])
        match random.randrange(10):
            case 0:
                both.verify(producer, epoch, sequence)
            case 1 | 2:
                both.verify(producer, epoch, sequence)
                both.append(producer, epoch, sequence, transactional=True)
            case 3 | 4 | 5:
                both.append(producer, epoch, sequence, transactional=random.random() < 0.8)
            case 6 | 7:
                coordinator = max(0, (0 if known is None else known.coordinator_epoch) + random.choice([0, 0, 1, -1]))
                both.decide(producer, epoch, EndMarker(random.random() < 0.5, coordinator))
            case _:
                both.replicate()
        if step % 4 == 0:
            both.compare()
    wanted = {"INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_TXN_STATE", "taken"}
    assert both.said >= wanted | {"TRANSACTION_COORDINATOR_FENCED"}
    assert len(both.completed) > 5
    assert {each.is_aborted for each in both.completed} == {True, False}
    both.close()
