"""The brokers that are compared, each a process of its own on this machine.

The benchmark starts and stops a rival, in a directory of its own, with the settings that its users get. A config of
each topic decides on both what an acknowledgement promises about the disk.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from benchmarks.load import kafka_peer
from benchmarks.load.kafka_peer import KafkaPeer
from tools.servers.broker_process import BrokerProcess

HEADRACE: Final = "headrace"
WITHOUT_JOURNAL: Final = "headrace-without-journal"
KAFKA: Final = kafka_peer.NAME


class Durability(StrEnum):
    """The promise about the disk of an acknowledgement at `acks=all`."""

    PAGE_CACHE = "page cache"
    FSYNC = "fsync before the acknowledgement"


class Door(NamedTuple):
    """The way in for the load."""

    bootstrap: str
    config: Path | None = None
    """Kafka's properties of clients; None: they need none."""


class Rival(Protocol):
    """A broker under measurement."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def bootstrap(self) -> str: ...
    @property
    def pids(self) -> Sequence[int]:
        """Of its processes."""
        ...

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        """How a topic is told."""
        ...

    def start(self) -> None: ...
    def stop(self) -> None: ...


@runtime_checkable
class Guarded(Protocol):
    """A rival whose load comes in otherwise than those who make and count its topics."""

    @property
    def door(self) -> Door: ...


def door_of(rival: Rival) -> Door:
    """The way in for the load."""
    return rival.door if isinstance(rival, Guarded) else Door(rival.bootstrap)


class Headrace:
    """`headrace up` with its default settings, but for `configs`."""

    def __init__(self, directory: Path, *, name: str = HEADRACE, configs: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True)
        self.name: Final = name
        options = [option for key, value in (configs or {}).items() for option in ("--config", f"{key}={value}")]
        self._broker = BrokerProcess(directory, *options)

    @property
    def version(self) -> str:
        return importlib.metadata.version("headrace")

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def pids(self) -> list[int]:
        return [self._broker.pid]

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        return {"flush.policy": "fsync" if durability is Durability.FSYNC else "os"}

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()


class Kafka(KafkaPeer):
    """Apache Kafka with its default settings, apart from `configs`. Deleted files go at once, not in the middle of a
    later run. The broker does not consider itself dead after it was stopped for a while."""

    def __init__(self, directory: Path, *, name: str = KAFKA, configs: Mapping[str, str] | None = None) -> None:
        usual = ("log.segment.delete.delay.ms=100", "broker.session.timeout.ms=3600000")
        options = (f"{key}={value}" for key, value in (configs or {}).items())
        super().__init__(directory, name=name, settings=(*usual, *options))

    def topic_config(self, durability: Durability) -> Mapping[str, str]:
        return {"flush.messages": "1"} if durability is Durability.FSYNC else {}


class Rivals:
    """Those that have been asked for by name. Each is started when it is asked for first, and stopped on leaving."""

    def __init__(self, directory: Path, more: Mapping[str, Callable[[Path], Rival]]) -> None:
        """`more`: others than single brokers, by name."""
        self._makers: Mapping[str, Callable[[Path], Rival]] = {
            HEADRACE: Headrace,
            KAFKA: Kafka,
            WITHOUT_JOURNAL: partial(Headrace, name=WITHOUT_JOURNAL, configs={"log.journal.max.bytes": "0"}),
            **more,
        }
        self._directory = directory
        self._started: dict[str, Rival] = {}
        self._running = ExitStack()

    def __getitem__(self, name: str) -> Rival:
        if name not in self._started:
            rival = self._makers[name](self._directory / name)
            self._running.callback(rival.stop)
            rival.start()
            self._started[name] = rival
        return self._started[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._running.close()
