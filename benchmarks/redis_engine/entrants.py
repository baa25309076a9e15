"""Those that `benchmarks.redis_engine` compares are brokers, floors, and bare Redis, each in processes of its own.

All that write to Redis have a Valkey of their own with the same settings: each answer is synced to its append-only
file. That file is never rewritten meanwhile, because a rewrite would disturb whoever has its turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.load import perf_tools
from benchmarks.load.cases import count as held
from benchmarks.load.rivals import Door, Kafka
from benchmarks.redis_engine import bare, rdkafka
from benchmarks.redis_engine.checking import CheckingRelay, state_of
from benchmarks.redis_engine.sink import Relay, Sink, SinkProcess
from headrace.net import loops
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from tools import kafka_jars
from tools.servers.broker_process import BrokerProcess
from tools.servers.redis_servers import RedisServer, valkey

T = TypeVar("T")
SAFE: Final = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
JAVA: Final = (f"batch.size={rdkafka.BATCH_BYTES}", f"linger.ms={rdkafka.LINGER_MS}", "enable.idempotence=true")
ANSWER_S: Final = 60.0
REST_S_MAX: Final = 10.0
REST_LOOK_S: Final = 0.2
REST_SHARE: Final = 0.15
"""The part of a processor below which processes rest."""
MEGABYTE: Final = 1_000_000


class Costs:
    """Processor milliseconds of this process with its children that have ended, and of an entrant's processes."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._who: Final = {name: psutil.Process(pid) for name, pid in {"client": os.getpid(), **pids}.items()}
        self._before: Final = self._now()

    def _now(self) -> dict[str, float]:
        return {name: 1000 * sum(_times(process)) for name, process in self._who.items()}

    def by_now(self) -> dict[str, float]:
        """Return what each has taken since the beginning."""
        return {name: after - self._before[name] for name, after in self._now().items()}


def _times(process: psutil.Process) -> Sequence[float]:
    return tuple(process.cpu_times())[: 4 if process.pid == os.getpid() else 2]


class Entrant(Protocol):
    """One of those that are compared."""

    name: str
    pids: Mapping[str, int]
    """Its processes: `broker`, `redis`."""

    def make(self, topics: Sequence[str], partitions: int = 1) -> None:
        """Make topics."""

    def delete(self, topics: Sequence[str]) -> None:
        """Delete them with all that they hold."""

    def write(self, topic: str, size: int, count: int, partitions: int = 1, *, idempotent: bool = False) -> float:
        """Send so many records of a size; returns the seconds."""

    def write_by_java(self, topic: str, size: int, count: int, in_flight: int) -> float:
        """Send so many records of a size by Java's idempotent producer; returns the seconds."""

    def check(self, topic: str, count: int, partitions: int = 1) -> None:
        """See that they are there, all and no more."""

    def read(self, topic: str, count: int) -> float:
        """Read them; returns the seconds."""

    def steady(self, topic: str, size: int, per_second: int, seconds: float) -> list[float]:
        """Send at a fixed rate; returns the latencies in milliseconds, from when each record was due."""


class Bare:
    """A Valkey alone, see `bare.py`."""

    name = "bare"

    def __init__(self, server: RedisServer) -> None:
        self.pids: Mapping[str, int] = {"redis": server.pid}
        self._path = str(server.socket)

    def make(self, topics: Sequence[str], partitions: int = 1) -> None:
        """The first entry makes a Stream."""

    def delete(self, topics: Sequence[str]) -> None:
        self._run(lambda connection: connection.call("UNLINK", *topics))

    def write(self, topic: str, size: int, count: int, partitions: int = 1, *, idempotent: bool = False) -> float:
        return self._run(lambda connection: bare.write(connection, topic, size * count, partitions))

    def write_by_java(self, topic: str, size: int, count: int, in_flight: int) -> float:
        raise AssertionError("it speaks no protocol of Kafka's")

    def check(self, topic: str, count: int, partitions: int = 1) -> None:
        """Each entry was answered."""

    def read(self, topic: str, count: int) -> float:
        return self._run(lambda connection: bare.read(connection, topic))

    def steady(self, topic: str, size: int, per_second: int, seconds: float) -> list[float]:
        record = os.urandom(size)
        return self._run(lambda connection: bare.steady(connection, topic, record, per_second, seconds))

    def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async def run() -> T:
            connection = await connect(Place(path=self._path), Credentials())
            try:
                return await work(connection)
            finally:
                await connection.close()

        return loops.run(run())


class Served:
    """Anything that speaks Kafka's protocol."""

    def __init__(self, name: str, bootstrap: str, pids: Mapping[str, int]) -> None:
        self.name = name
        self.pids = pids
        self.bootstrap = bootstrap

    def make(self, topics: Sequence[str], partitions: int = 1) -> None:
        """The floors need none."""

    def delete(self, topics: Sequence[str]) -> None:
        """As `make`."""

    def write(self, topic: str, size: int, count: int, partitions: int = 1, *, idempotent: bool = False) -> float:
        options = rdkafka.IDEMPOTENT if idempotent else {}
        return rdkafka.write(self.bootstrap, topic, os.urandom(size), count, partitions, options)

    def write_by_java(self, topic: str, size: int, count: int, in_flight: int) -> float:
        props = (*JAVA, f"max.in.flight.requests.per.connection={in_flight}")
        figures = perf_tools.produce(Door(self.bootstrap), topic, count, size, props)
        return count / figures["records_per_s"]

    def check(self, topic: str, count: int, partitions: int = 1) -> None:
        found = held(self.bootstrap, topic, partitions)
        assert found == count, f"{topic} of {self.name} holds {found} records, not {count}"

    def read(self, topic: str, count: int) -> float:
        return rdkafka.read(self.bootstrap, topic, count)

    def steady(self, topic: str, size: int, per_second: int, seconds: float) -> list[float]:
        return rdkafka.steady(self.bootstrap, topic, os.urandom(size), per_second, seconds)


class Broker(Served):
    """A broker, whose topics are made and deleted."""

    def make(self, topics: Sequence[str], partitions: int = 1) -> None:
        admin = self._admin()
        for made in admin.create_topics([NewTopic(name, partitions, 1) for name in topics]).values():
            made.result(ANSWER_S)

    def delete(self, topics: Sequence[str]) -> None:
        admin = self._admin()
        for deleted in admin.delete_topics([*topics]).values():
            deleted.result(ANSWER_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})


class Relayed(Served):
    """A relay, whose Streams are named as topic and partition."""

    def __init__(self, name: str, relay: SinkProcess, server: RedisServer) -> None:
        super().__init__(name, relay.bootstrap, {"broker": relay.pid, "redis": server.pid})
        self._valkey = Bare(server)

    def delete(self, topics: Sequence[str]) -> None:
        places = [(topic, index) for topic in topics for index in range(PARTITIONS_MAX)]
        self._valkey.delete([f"{topic}:{index}" for topic, index in places] + [state_of(*place) for place in places])


PARTITIONS_MAX: Final = 1_000


async def made_sink() -> Sink:
    return Sink(PARTITIONS_MAX)


async def made_relay(path: str) -> Sink:
    return Relay(PARTITIONS_MAX, await connect(Place(path=path), Credentials()))


async def made_checking_relay(path: str) -> Sink:
    relay = CheckingRelay(PARTITIONS_MAX, await connect(Place(path=path), Credentials()))
    await relay.start()
    return relay


@contextmanager
def entrants(directory: Path, names: Sequence[str]) -> Iterator[list[Entrant]]:
    """Start those that are named, in an order of their own; of Kafka, only where this machine can run it."""
    with ExitStack() as running:

        def place(name: str) -> Path:
            made = directory / name
            made.mkdir()
            return made

        def redis(name: str) -> RedisServer:
            return running.enter_context(RedisServer(valkey(), place(name), SAFE))

        def on_redis() -> Entrant:
            server = redis("r")
            options = ("--engine", "redis", "--redis", server.url)
            process = running.enter_context(BrokerProcess(place("redis"), *options))
            return Broker("redis", process.bootstrap, {"broker": process.pid, "redis": server.pid})

        def local() -> Entrant:
            process = running.enter_context(BrokerProcess(place("local")))
            return Broker("local", process.bootstrap, {"broker": process.pid})

        def sink() -> Entrant:
            process = running.enter_context(SinkProcess(made_sink))
            return Served("sink", process.bootstrap, {"broker": process.pid})

        def relay(name: str, make: Callable[[str], Awaitable[Sink]]) -> Entrant:
            server = redis(f"{name}-redis")
            process = running.enter_context(SinkProcess(partial(make, str(server.socket))))
            return Relayed(name, process, server)

        def kafka() -> Entrant:
            peer = running.enter_context(Kafka(directory / "kafka"))
            return Broker("kafka", peer.bootstrap, {"broker": peer.pid})

        makers: Mapping[str, Callable[[], Entrant]] = {
            "bare": lambda: Bare(redis("b")),
            "sink": sink,
            "relay": partial(relay, "relay", made_relay),
            "checking": partial(relay, "checking", made_checking_relay),
            "redis": on_redis,
            "local": local,
            "kafka": kafka,
        }
        wanted = list(names or makers)
        if "kafka" in wanted and (missing := kafka_jars.missing_tool()):
            print(f"Kafka is left out: {missing}", flush=True)
            wanted.remove("kafka")
        yield [makers[name]() for name in wanted]


def memory_mb(entrant: Entrant) -> float:
    """The broker's resident memory."""
    return float(psutil.Process(entrant.pids["broker"]).memory_info().rss) / MEGABYTE


def wait_for_rest(entrant: Entrant) -> None:
    """Wait until its processes have little to do, as when what was deleted is gone; or for REST_S_MAX."""
    for _ in range(round(REST_S_MAX / REST_LOOK_S)):
        costs = Costs(entrant.pids)
        time.sleep(REST_LOOK_S)
        if sum(took for who, took in costs.by_now().items() if who != "client") < REST_SHARE * 1000 * REST_LOOK_S:
            return
