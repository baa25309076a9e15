"""The brokers that are measured against each other, each a process of its own on this machine.

A rival is started and stopped by the benchmark, in a directory of its own, with the settings that its users get: for
Headrace an fdatasync before each acknowledgement, for Kafka the page cache.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final, Protocol

from benchmarks.load.kafka_peer import KafkaPeer
from tools.broker_process import BrokerProcess


class Rival(Protocol):
    """A broker under measurement."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def durability(self) -> str:
        """What an acknowledgement at `acks=all` says about the disk."""
        ...

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class Headrace:
    """`headrace up` with its default settings."""

    name: Final = "headrace"
    durability: Final = "fdatasync before the acknowledgement"

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

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()


class Kafka(KafkaPeer):
    """Apache Kafka with its default settings."""

    durability: Final = "page cache"


def rivals(directory: Path) -> tuple[Rival, Rival]:
    """Headrace and Kafka, not yet started."""
    return Headrace(directory / "headrace"), Kafka(directory / "kafka")
