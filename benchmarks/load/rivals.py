"""The brokers that are measured against each other, each a process of its own on this machine.

A rival is started and stopped by the benchmark, in a directory of its own, with the settings that its users get. What
an acknowledgement says about the disk is a config of each topic on both.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from benchmarks.load.kafka_peer import KafkaPeer
from tools.broker_process import BrokerProcess


class Durability(StrEnum):
    """What an acknowledgement at `acks=all` says about the disk."""

    PAGE_CACHE = "page cache"
    FSYNC = "fsync before the acknowledgement"


class Rival(Protocol):
    """A broker under measurement."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        """How a topic is told."""
        ...

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Headrace:
    """`headrace up` with its default settings."""

    name: Final = "headrace"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._broker = BrokerProcess(directory)

    @property
    def version(self) -> str:
        return importlib.metadata.version("headrace")

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def pid(self) -> int:
        return self._broker.pid

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        return {"flush.policy": "fsync" if durability is Durability.FSYNC else "os"}

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()


class Kafka(KafkaPeer):
    """Apache Kafka with its default settings, but that deleted files go at once, not in the middle of a later run."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings=("log.segment.delete.delay.ms=100",))

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        return {"flush.messages": "1"} if durability is Durability.FSYNC else {}


def rivals(directory: Path) -> tuple[Rival, Rival]:
    """Headrace and Kafka, not yet started."""
    return Headrace(directory / "headrace"), Kafka(directory / "kafka")
