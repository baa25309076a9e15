"""Brokers on the running event loop, for as long as a block runs. Imports the broker only when one is made."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.garbage import without_collector
from headrace.base.ids import BrokerId, TopicId
from headrace.base.values import Value
from headrace.testing.clients import Clients, Login
from headrace.testing.clocks import MovableClock
from headrace.testing.faults import Faults
from headrace.testing.logs import use_standard_logging

if TYPE_CHECKING:
    from headrace.base.ports import Disk, Objects
    from headrace.broker.boot import Broker
    from headrace.broker.config import BrokerConfig
    from headrace.broker.home.nodes import Node
    from headrace.broker.home.securing import Secured

DURABLE_URL: Final = "durable.url"
HOST: Final = "127.0.0.1"
FREE_BYTES_MIN: Final = 32 << 20
QUICK: Final = {"group.initial.rebalance.delay.ms": "0", "log.disk.min.free.bytes": str(FREE_BYTES_MIN)}
"""Configs of every test's broker, unless it is given others. A group need not wait for members that never
come, and a laptop's disk may be nearly full."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunningBroker(Value):
    """The address and directory of a test's broker."""

    host: str
    port: int
    data: Path
    """Its data directory."""
    addresses: Mapping[str, Address] = field(default_factory=dict)
    """The address of each listener, by its name."""
    login: Login | None = None
    """The administrator of a secured broker, who may do everything."""
    faults: Faults = field(default_factory=Faults)
    """The faults that a test orders of it: refusals, lost answers, slow ones."""

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT` of the first listener, as clients expect it."""
        return str(Address(self.host, self.port))

    @property
    def clients(self) -> Clients:
        """Settings for clients of others. Those of a secured broker are the administrator's."""
        return Clients(bootstrap=self.bootstrap, login=self.login)

    def bootstrap_of(self, listener: str) -> str:
        """As `bootstrap`, of the listener of that name."""
        return str(self.addresses[listener])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Running(Value):
    """A broker that was started, and the way to stop it."""

    broker: Broker
    stopping: AsyncExitStack
    """Stops it."""


class RunningCluster:
    """Brokers 1 to N. A test may stop each of them, and start it again with its data."""

    def __init__(
        self, nodes: Mapping[int, Node], configs: Mapping[str, str] | None, login: Login | None = None
    ) -> None:
        self._nodes = nodes
        self._configs = configs
        self.login: Final = login
        """The administrator of a secured cluster, who may do everything."""
        self._faults = {key: Faults() for key in nodes}
        self._running: dict[int, _Running] = {}
        self._changed = asyncio.Event()
        """Set when a broker's metadata, or which brokers run, has changed since it was last cleared."""

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT,HOST:PORT,...` of all brokers, even stopped ones: clients try one after the other."""
        return ",".join(str(node.listen) for node in self._nodes.values())

    @property
    def clients(self) -> Clients:
        """As `RunningBroker.clients`."""
        return Clients(bootstrap=self.bootstrap, login=self.login)

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the running brokers."""
        return tuple(sorted(self._running))

    def faults(self, broker: int) -> Faults:
        """Return the faults that a test orders of that broker. They outlive a restart. Raises UsageError."""
        return self._faults[int(self._node(broker).id)]

    async def start(self, *brokers: int) -> None:
        """Start these brokers together, and wait until all serve; by default all that do not run.

        Then each running broker also knows that all the running ones serve. Brokers that are started one by one serve
        once most of the cluster runs. Raises HeadraceError where one cannot start.
        """
        wanted = [each for each in brokers or self._nodes if each not in self._running]
        work = [asyncio.ensure_future(self._start(self._node(each))) for each in wanted]
        try:
            await asyncio.gather(*work)
        finally:
            for start in work:
                start.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        while not self._all_are_known():
            await self._next_change()
        for each in wanted:
            if each in self._running and (failure := self._running[each].broker.failure) is not None:
                raise HeadraceError(f"Broker {each} had to stop: {failure}") from failure

    async def stop(self, *brokers: int) -> None:
        """Stop these brokers cleanly, one after the other: each hands over the partitions that it leads. By default all
        that run.
        """
        async with AsyncExitStack() as stopping:
            for each in reversed(brokers or self.running):  # all of them, even if one fails
                if (running := self._running.pop(self._node(each).id, None)) is not None:
                    stopping.push_async_callback(running.stopping.aclose)
            self._changed.set()

    async def _start(self, node: Node) -> None:
        from headrace.broker.config import BrokerConfig

        config = BrokerConfig(
            data=node.data,
            host=node.listen.host,
            port=node.listen.port,
            broker_id=node.id,
            join=tuple(other.listen for other in self._nodes.values() if other is not node),
            configs={**QUICK, **(self._configs or {})},
        )
        stack = AsyncExitStack()
        broker = await stack.enter_async_context(_served(config, self._faults[int(node.id)]))
        over = asyncio.ensure_future(broker.over())
        over.add_done_callback(lambda _: self._changed.set())
        stack.callback(over.cancel)
        broker.observe(lambda _: self._changed.set())
        self._running[node.id] = _Running(broker, stack)
        self._changed.set()

    async def _agree(self) -> None:
        """Wait until each running broker knows what any of them knows by now. Raises HeadraceError where one stops."""
        drivers = [each.broker.parts.metadata for each in self._running.values()]
        furthest = max(driver.image.index for driver in drivers)
        await asyncio.gather(*(driver.reached(furthest) for driver in drivers))

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _all_are_known(self) -> bool:
        """Whether each running broker knows that all of them serve. One that failed counts as stopped."""
        running = {key: each.broker for key, each in self._running.items() if each.broker.failure is None}
        return all(_serves(key, running[key], one) for key in running for one in running.values())

    def _node(self, broker: int) -> Node:
        if broker not in self._nodes:
            raise UsageError(f"There is no broker {broker}: this cluster has 1 to {len(self._nodes)}.")
        return self._nodes[broker]


def _serves(key: int, broker: Broker, other: Broker) -> bool:
    """Whether the other broker knows that the broker of that id serves, as the incarnation that runs now."""
    own, told = broker.image.brokers.get(BrokerId(key)), other.image.brokers.get(BrokerId(key))
    return own is not None and told is not None and told.epoch == own.epoch and not told.fenced


@asynccontextmanager
async def broker(
    *,
    configs: Mapping[str, str] | None = None,
    data: Path | None = None,
    port: int = 0,
    advertised_port: int | None = None,
    secure: bool = False,
    clock: MovableClock | None = None,
) -> AsyncIterator[RunningBroker]:
    """A broker on loopback while the block runs, stopped cleanly after it.

    `configs` are broker configs, by Kafka's names. With `durable.url` it exports there. Without `data` it lives in a
    temporary directory that is removed afterwards. With `data`, existing data are kept, so that a test can start the
    broker again. Port 0 takes a free one. Clients are told `advertised_port`, where one is given: a proxy's.
    `secure`: as `headrace up --secure`, it lets in users by SCRAM over TLS, and ACLs say what they may. `clock`: its
    time; timers follow it where the loop is the clock's, too. Raises HeadraceError where it cannot start.
    """
    with without_collector():
        from headrace.broker.config import BrokerConfig

    with _directory(data) as place:
        secured = await _secured(place) if secure else None
        config = BrokerConfig(
            data=place, port=port, advertised_port=advertised_port, configs={**QUICK, **_configs(secured, configs)}
        )
        faults = Faults()
        async with _served(config, faults, clock) as made:
            running = RunningBroker(host=made.host, port=made.port, data=place, addresses=made.addresses, faults=faults)
            if secured is None:
                yield running
            else:
                await _enrol(secured, Address(running.host, running.port))
                yield replace(running, login=_login(secured))


@asynccontextmanager
async def cluster(
    brokers: int = 3, *, configs: Mapping[str, str] | None = None, data: Path | None = None, secure: bool = False
) -> AsyncIterator[RunningCluster]:
    """A cluster of that many brokers on loopback, all of them voters, while the block runs.

    `configs`, `data` and `secure` are as in `broker`. The cluster of a directory has as many brokers as when it was
    made. Topics have up to three replicas by default. Raises HeadraceError where it cannot start.
    """
    from headrace.base.addresses import Address
    from headrace.broker.home.nodes import prepare
    from headrace.storage.disk import LocalDisk

    with _directory(data) as place:
        claim, nodes = prepare(LocalDisk(), place, Address(HOST, 0), brokers, random.SystemRandom())
        secured = await _secured(place) if secure else None
        login = None if secured is None else _login(secured)
        made = RunningCluster({int(node.id): node for node in nodes}, _configs(secured, configs), login)
        try:
            try:
                await made.start()
                if secured is not None:
                    await _enrol(secured, *(node.listen for node in nodes))
                    await made._agree()
                yield made
            finally:
                await made.stop()
        finally:
            claim.release()


async def _secured(data: Path) -> Secured:
    from headrace.broker.home.securing import secure

    return await asyncio.to_thread(secure, data / "security", [])


def _configs(secured: Secured | None, own: Mapping[str, str] | None) -> dict[str, str]:
    return {**(secured.of_brokers() if secured else {}), **(own or {})}


async def _enrol(secured: Secured, *brokers: Address) -> None:
    from headrace.broker.home.securing import enrol

    await enrol(secured, brokers)


def _login(secured: Secured) -> Login:
    return Login(user=secured.user, password=secured.password, ca=secured.ca, properties=secured.client)


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    """The given directory, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix="headrace-test-", ignore_cleanup_errors=True) as temporary:
        yield (data if data is not None else Path(temporary)).resolve()


@asynccontextmanager
async def _served(config: BrokerConfig, faults: Faults, clock: MovableClock | None = None) -> AsyncIterator[Broker]:
    with without_collector():
        from headrace.broker.boot import Broker
        from headrace.broker.system import SystemClock, system_random
        from headrace.storage.disk import LocalDisk
        from headrace.storage.log.compaction.runners import run_in_child

    use_standard_logging()
    disk = LocalDisk()
    made = Broker(
        config,
        clock=clock or SystemClock(),
        random=system_random(),
        disk=disk,
        objects=_objects(config, disk),
        cleaning=run_in_child,
    )
    async with made:
        listener = made.parts.requests.listener
        listener.serve = faults.before(listener.serve, partial(_name_of, made))
        yield made


def _objects(config: BrokerConfig, disk: Disk) -> Objects | None:
    """Open the durable store, if there is one."""
    url = config.configs.get(DURABLE_URL)
    if not url:
        return None
    from headrace.storage.objects import open_objects

    return open_objects(url, disk)


def _name_of(broker: Broker, topic_id: TopicId) -> str | None:
    topic = broker.image.topic_by_id(topic_id)
    return None if topic is None else topic.name
