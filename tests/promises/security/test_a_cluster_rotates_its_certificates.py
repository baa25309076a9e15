"""A cluster's certificates are issued again, and then its authority is replaced, by the recipe of docs/SECURITY.md.

Three real processes serve clients over TLS, and show each other certificates. Meanwhile producers write at acks=all,
with idempotence, and a consumer group reads. Nothing acknowledged is lost or doubled, and no client meets an error.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka
from aiokafka import AIOKafkaProducer

from headrace.base.addresses import Address
from tests import loops
from tests.certificates import Authority
from tests.promises.security.test_certificates_change_under_load import Files, comes_in
from tests.promises.support.guarded import HOST, GuardedCluster
from tests.promises.support.load import DEADLINE_S, QUIET, PartitionLogs, Producer, Sender, value_of
from tests.promises.support.records import ASKED_EVERY_S, IDEMPOTENT, IMPATIENT, OPTIONS, PLAIN, Records, Shape
from tests.promises.support.records import under_records as loaded
from tests.promises.support.writing import REST_S, writing
from tests.promises.support.writing import TOPIC as BRIEF
from tests.threads import joined
from tests.tiers import long_only
from tools import warm
from tools.servers.server_process import port_held_for

ROUNDS: Final = 5
LASTING: Final = "over-tls"
AIO: Final = "of-aiokafka"
SHAPES: Final = {name: Shape() for name in (IDEMPOTENT, PLAIN, LASTING, AIO, BRIEF)}
SOON: Final = (
    "import sys; from headrace.broker.requests import doors; doors.TLS_REFRESH_MS = 100; "
    "from headrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
"""A broker that looks at its files sooner than every five seconds."""


class TlsCluster(GuardedCluster):
    """Clients of the load come by TLS, at `secure`. Each broker has files of its own, which are changed by a rename."""

    def __init__(self, directory: Path, count: int, authority: Authority, *options: str) -> None:
        super().__init__(directory, count, *options)
        self._secure = {broker: Address(HOST, port_held_for(self)) for broker in self.nodes}
        self.files = {}
        for broker in self.nodes:
            own = directory / f"files-{broker}"
            own.mkdir()
            self.files[broker] = Files(own, authority)
        self.configure(
            {
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,SECURE:SSL,BROKERS:SSL",
                "listener.name.brokers.ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^.*$/broker/",
                "super.users": "User:ANONYMOUS;User:broker",
            }
        )

    def command(self, broker: int) -> list[str]:
        command, files = super().command(broker), self.files[broker]
        command[-1] += f",SECURE://{self._secure[broker]}"
        stores = {"ssl.keystore.location": files.chain, "ssl.truststore.location": files.trust}
        own = [f"--config={key}={path}" for key, path in stores.items()]
        return [sys.executable, "-c", SOON, *command[len(warm.COMMAND) :], *own]

    @property
    def secure(self) -> str:
        return ",".join(map(str, self._secure.values()))

    async def until(self, holds: Callable[[str], bool]) -> None:
        """Until it holds at each broker's listener for brokers."""
        for node in self.nodes.values():
            await until(partial(holds, str(node.listen)))


async def until(true: Callable[[], bool]) -> None:
    """Asks in a thread: the answer may be a connection's."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await asyncio.to_thread(true):
                return
            await asyncio.sleep(ASKED_EVERY_S)


class AioProducer(Sender):
    """That of aiokafka, with idempotence, on a loop and in a thread of its own."""

    def __init__(self, bootstrap: str, trust: Path) -> None:
        super().__init__(AIO)
        self._bootstrap, self._trust = bootstrap, trust
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="aiokafka", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        joined(self._thread)

    give_up = stop

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            security_protocol="SSL",
            ssl_context=ssl.create_default_context(cafile=str(self._trust)),
            enable_idempotence=True,
            acks="all",
        )
        await producer.start()
        while not self._stopping.is_set():
            await asyncio.gather(*(self._send(producer, partition) for partition in range(self.partitions)))
            await asyncio.sleep(REST_S)
        await producer.stop()

    async def _send(self, producer: AIOKafkaProducer, partition: int) -> None:
        value = value_of(self.sent)
        self.sent += 1
        try:
            told = await producer.send_and_wait(self.topic, value, partition=partition)
        except Exception as error:
            self._on_failed(repr(error))
        else:
            self._on_acknowledged(partition, told.offset, value)


class Group(threading.Thread):
    """A member of a consumer group that reads all of a topic."""

    def __init__(self, configs: dict[str, Any], topic: str) -> None:
        super().__init__(daemon=True)
        own = {"group.id": "readers", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200}
        self._client = confluent_kafka.Consumer({**configs, **own})
        self._client.subscribe([topic])
        self._over = threading.Event()
        self.seen: dict[tuple[int, int], bytes] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._over.is_set():
            for message in self._client.consume(1_000, timeout=0.05):
                if (error := message.error()) is not None:
                    self.problems.append(error.str())
                    continue
                place = (message.partition(), message.offset())
                if place in self.seen:
                    self.problems.append(f"twice: {place}")
                self.seen[place] = message.value() or b""
        self._client.close()

    def has(self, told: PartitionLogs) -> bool:
        """Whether it has read what was acknowledged."""
        places = ((place, value) for partition, log in told.items() for place, value in _placed(partition, log))
        return all(self.seen.get(place) == value for place, value in places)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        joined(self)


def _placed(partition: int, log: dict[int, bytes]) -> list[tuple[tuple[int, int], bytes]]:
    return [((partition, offset), value) for offset, value in log.items()]


async def rotated(cluster: TlsCluster, trust: Path, old: Authority, new: Authority) -> None:
    """First the brokers' certificates are issued again, then the authority is replaced. `trust`: has all of them."""
    his, hers = old.issue(f"his-{id(new)}.example"), new.issue(f"hers-{id(new)}.example")
    for broker, files in cluster.files.items():
        at = str(cluster.nodes[broker].listen)
        known = (await asyncio.to_thread(comes_in, at, trust, his), None)
        files.put(files.chain, old.issue(HOST))
        await until(lambda at=at, known=known: comes_in(at, trust, his) not in known)  # type: ignore[misc]
    for files in cluster.files.values():
        files.put(files.trust, old.trust, new.trust)
    await cluster.until(lambda at: comes_in(at, trust, hers) is not None)
    for files in cluster.files.values():
        files.put(files.chain, new.issue(HOST))
    await cluster.until(lambda at: comes_in(at, new.trust, his) is not None)
    for files in cluster.files.values():
        files.put(files.trust, new.trust)
    await cluster.until(lambda at: comes_in(at, new.trust, his) is None)
    await cluster.until(lambda at: comes_in(at, new.trust, hers) is not None)


async def restarted(cluster: TlsCluster, records: Records, broker: int) -> None:
    """It meets brokers and clients by new certificates alone."""
    assert await cluster.stop(broker) == [0]
    await records.acknowledged(1)
    await cluster.start(broker)
    await records.in_sync()


@long_only
def test_certificates_and_their_authority_change_in_a_cluster_and_nothing_is_lost(tmp_path: Path) -> None:
    authorities = [Authority.made(tmp_path / f"authority-{number}") for number in range(ROUNDS + 1)]
    trust = tmp_path / "all.pem"
    trust.write_bytes(b"".join(each.trust.read_bytes() for each in authorities))
    errors: list[confluent_kafka.KafkaError] = []

    async def work() -> None:
        async with TlsCluster(tmp_path, 3, authorities[0], *OPTIONS) as cluster:
            tls = {"security.protocol": "SSL", "ssl.ca.location": str(trust)}
            brief_settings = {"bootstrap.servers": cluster.secure, "acks": "all", "linger.ms": 0, **tls}
            watched: dict[str, Any] = {**tls, "error_cb": errors.append}
            sender = Producer(cluster.secure, LASTING, idempotent=True, burst=50, **IMPATIENT, **watched)
            others = (sender, AioProducer(cluster.secure, trust))
            async with loaded(cluster, SHAPES, others=others) as records:
                with ExitStack() as stack:
                    settings = {"bootstrap.servers": cluster.secure, **QUIET, **watched}
                    group = stack.enter_context(Group(settings, LASTING))
                    for number, (old, new) in enumerate(pairwise(authorities)):
                        with writing(brief_settings) as brief:
                            await records.acknowledged(1)
                            await rotated(cluster, trust, old, new)
                            await records.acknowledged(1)
                            await asyncio.to_thread(brief.stop)
                        assert not brief.problems
                        assert len(brief.acknowledged) > 1
                        await restarted(cluster, records, number % 3 + 1)
                    told = sender.snapshot()
                    await until(lambda: group.has(told))
                assert not group.problems
            met = {error.name() for error in errors}
            assert met <= {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"}, met

    loops.run(work())
