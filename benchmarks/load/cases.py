"""The measured cases: each case is one small class, and `CASES` is the list that `--case` chooses from.

A case prepares a rival, runs once against it and returns how fast that was. It knows nothing of turns, warm-up, medians
or profiles.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.load.raw.raw_links import LEADER_POLL_S, Link, log_ends
from benchmarks.load.rivals import HEADRACE, KAFKA, Durability, Rival

ANSWER_TIMEOUT_S: Final = 60.0
MEGABYTE: Final = 1024 * 1024
REPLICAS_WITH_TWO_IN_SYNC: Final = 3
CPU_RATIO_MAX: Final = 0.3
MEMORY_RATIO_MAX: Final = 0.15
"""Targets for every case, relative to Kafka: processor time and resident memory of the broker."""


class Better(StrEnum):
    """The direction in which a figure is good."""

    HIGHER = "higher"
    LOWER = "lower"


class Entrant(NamedTuple):
    """A rival, and what its acknowledgements have to mean."""

    rival: Rival
    durability: Durability
    replicas: int = 1
    """Of each partition; with three of them, two have to be in sync."""


class Target(NamedTuple):
    """The target of our figure, as a multiple of theirs."""

    ratio: float
    better: Better
    most: float | None = None
    """The most that our figure may be by itself, in its own unit; the ratio is then only reported."""

    def rises(self, best: float, now: float, factor: float) -> bool:
        """Whether `now` is better than `best` by the factor."""
        return now > best * factor if self.better is Better.HIGHER else now * factor < best


def at_least(ratio: float) -> Target:
    """A multiple of theirs, or more."""
    return Target(ratio, Better.HIGHER)


def at_most(ratio: float) -> Target:
    """A multiple of theirs, or less."""
    return Target(ratio, Better.LOWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run: the rate that is compared, and what else is worth keeping, with units in the names."""

    rate: float
    others: Mapping[str, float]
    megabytes: float = 0.0
    """Record values that went in and out of the broker."""


class Measurable(Protocol):
    """One thing to measure."""

    @property
    def about(self) -> About: ...

    def run(self, entrant: Entrant) -> Figures:
        """Once, leaving nothing behind but what the next run of it uses again."""
        ...


class Case(Measurable, Protocol):
    """One that can be had smaller."""

    def scaled(self, factor: float) -> Case:
        """The case with this fraction of its load."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The description of every case."""

    name: str
    title: str
    unit: str = "MB/s"
    """The unit of `Figures.rate`."""
    who: str = HEADRACE
    """The measured broker, by `Rival.name`."""
    against: str = KAFKA
    """And beside whom."""
    ours: Durability = Durability.FSYNC
    theirs: Durability = Durability.PAGE_CACHE
    target: Target
    """For `Figures.rate`."""
    more_targets: Mapping[str, Target] = field(default_factory=dict)
    """For some of `Figures.others`, by name."""
    cost_targets: Mapping[str, Target] = field(
        default_factory=lambda: {
            "cpu": Target(CPU_RATIO_MAX, Better.LOWER),
            "memory_mb": Target(MEMORY_RATIO_MAX, Better.LOWER),
        }
    )
    """Processor time, per GB where the case moves gigabytes, and resident memory after the run."""
    warms_up: bool = True
    """Whether it is run until the one beside us gets no faster before it is measured."""
    replicas: int = 1
    """Of each partition."""
    restarts: bool = False
    """Whether a run ends the broker's process, so that it cannot be profiled."""

    def entrant(self, rival: Rival) -> Entrant:
        """The rival, with what its acknowledgements have to mean here."""
        return Entrant(rival, self.theirs if rival.name == self.against else self.ours, self.replicas)


def portion(amount: int, factor: float) -> int:
    """So much of a case's load, but some."""
    return max(1, round(amount * factor))


@contextmanager
def topic_on(entrant: Entrant, name: str, partitions: int) -> Iterator[str]:
    """A new topic, deleted afterwards."""
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    make_topic(entrant, topic, partitions)
    try:
        yield topic
    finally:  # a client of its own: who saw a broker stand still or go may yet take it for gone
        admin = AdminClient({"bootstrap.servers": entrant.rival.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(ANSWER_TIMEOUT_S)


def make_topic(entrant: Entrant, topic: str, partitions: int, more: Mapping[str, str] | None = None) -> None:
    """With the durability that is asked for, and `more` configs; on return all of it is led, and every replica in
    sync."""
    admin = AdminClient({"bootstrap.servers": entrant.rival.bootstrap, "log_level": 0})
    config = {**entrant.rival.topic_config(entrant.durability), **(more or {})}
    if entrant.replicas >= REPLICAS_WITH_TWO_IN_SYNC:
        config["min.insync.replicas"] = "2"
    wanted = NewTopic(topic, partitions, entrant.replicas, config=config)
    admin.create_topics([wanted])[topic].result(ANSWER_TIMEOUT_S)
    for address, led in leaders(entrant, topic, partitions).items():
        link = Link(address)
        log_ends(link, topic, led)
        link.close()


def leaders(entrant: Entrant, topic: str, partitions: int) -> Mapping[str, Sequence[int]]:
    """HOST:PORT of each broker that leads any of it, and what it leads; once every replica is in sync."""
    admin = AdminClient({"bootstrap.servers": entrant.rival.bootstrap, "log_level": 0})
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        told = admin.list_topics(topic, timeout=ANSWER_TIMEOUT_S)
        found = told.topics[topic].partitions
        if len(found) == partitions and all(
            each.leader in told.brokers and len(each.isrs) == entrant.replicas for each in found.values()
        ):
            break
        assert time.monotonic() < deadline, f"not all of {topic} is led and in sync"
        time.sleep(LEADER_POLL_S)
    led: dict[str, list[int]] = {}
    for number, each in sorted(found.items()):
        broker = told.brokers[each.leader]
        led.setdefault(f"{broker.host}:{broker.port}", []).append(number)
    return led


def delete_topics(rival: Rival, case: str) -> None:
    """Those that a case has made, once it has been measured: what it kept must not weigh on the next."""
    admin = AdminClient({"bootstrap.servers": rival.bootstrap, "log_level": 0})
    kept = [name for name in admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics if name.startswith(f"{case}-")]
    for future in admin.delete_topics(kept).values() if kept else ():
        try:
            future.result(ANSWER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # a list may lag behind a deletion
                raise


def count(bootstrap: str, topic: str, partitions: int) -> int:
    """Records in a topic: a rate counts only where every one is there."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark", "log_level": 0})
    try:
        return sum(
            int(reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_TIMEOUT_S)[1])
            for partition in range(partitions)
        )
    finally:
        reader.close()
