"""A broker, from an empty or a crashed directory to serving, and back to a clean stop.

A start takes these steps in order:
- Claim the directory, and find the cluster.
- Recover the metadata, and bind.
- Register this incarnation, which raises the leader epoch of all partitions that it leads.
- Open their logs, and be unfenced.

A stop takes these: hand leadership to others, accept no more, answer the accepted requests, flush, close. It runs on
any asyncio loop, and reaches the world through ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Final, Self

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ports import Clock, Disk, Lock, Objects, Random
from headrace.broker.config import BrokerConfig
from headrace.broker.foundation.laid import Foundation
from headrace.broker.foundation.local import on_local_logs
from headrace.broker.handlers import all_handlers
from headrace.broker.home.identity import claim
from headrace.broker.home.lineage import Superseded, note_superseded
from headrace.broker.partitions.condition import Descriptors
from headrace.broker.parts import Parts, Ports, core_of
from headrace.logs import get_logger
from headrace.metadata.configs import check_broker_configs
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import Endpoint, Engine, endpoint_at
from headrace.native import ROAD
from headrace.storage.log.compaction.runners import CleaningRunner

log = get_logger(__name__)

LOADED_LATE: Final = (
    "broker.durable",
    "broker.groups",
    "broker.moves",
    "broker.partitions.intake",
    "broker.replication",
    "broker.transactions",
    "controller",
    "controller.asks",
    "storage.log.compaction",
)
"""Rooms of which much is loaded only when it is needed."""
ASKS_LATE: Final = "headrace.net.client.moves"
"""They ask other brokers with it."""


def load_ahead() -> None:
    """Load all that a broker may need and that its start does not load. A broker that lasts does so before it starts:
    no client waits for an import. Those of tests do not, for they use little of it."""
    all_handlers()
    for room in LOADED_LATE:
        for module in iter_modules(import_module(f"headrace.{room}").__path__, f"headrace.{room}."):
            import_module(module.name)
    import_module(ASKS_LATE)


class Broker:
    """One broker. `start` raises UsageError, CorruptData or StorageFailure, each saying what to do."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        random: Random,
        disk: Disk,
        objects: Objects | None = None,
        cleaning: CleaningRunner | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        """`objects`: the durable store; None: nothing is exported. `cleaning` runs the slow work of compaction; None: a
        worker thread does. `descriptors` counts this process's file descriptors; None: nobody does."""
        self._config = config
        self._ports = Ports(
            clock=clock, random=random, disk=disk, objects=objects, cleaning=cleaning, descriptors=descriptors
        )
        self._lock: Lock | None = None
        self._parts: Parts | None = None
        self._failure: Exception | None = None
        self._over = asyncio.Event()
        self._bound: dict[str, Address] = {}
        """The bound address of each listener."""

    @property
    def host(self) -> str:
        return self.address.host

    @property
    def port(self) -> int:
        """The bound port of the first listener. Only once it has started."""
        return next(iter(self._bound.values())).port

    @property
    def address(self) -> Address:
        """The address of the first listener, as in `addresses`."""
        return next(iter(self.addresses.values()))

    @property
    def addresses(self) -> dict[str, Address]:
        """The address of each listener, once started. Where that is every address of the machine, it is the one that
        clients are told."""
        told = {each.listener: each.address for each in self._endpoints()}
        return {name: told.get(name, bound) if bound.is_wildcard else bound for name, bound in self._bound.items()}

    @property
    def failure(self) -> Exception | None:
        """Why the broker stopped by itself; None where it did not."""
        return self._failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Recover, register, open, serve. On return clients are served."""
        check_broker_configs(self._config.configs)
        self._config.check_addresses()
        started = self._ports.clock.monotonic()
        loop = asyncio.get_running_loop()
        self._lock = await loop.run_in_executor(None, claim, self._ports.disk, self._config.data)
        try:
            parts = await self._assemble()
        except BaseException as error:
            if isinstance(error, Superseded):
                await self._note_superseded(error)
            self._lock.release()
            raise
        self._parts = parts
        log.info(
            "ready",
            listeners=[f"{name}://{address}" for name, address in self.addresses.items()],
            broker_id=self._config.broker_id,
            cluster_id=parts.metadata.image.cluster_id,
            road=ROAD.name,
            topics=len(parts.metadata.image.topics),
            partitions=len(parts.partitions),
            seconds=round(self._ports.clock.monotonic() - started, 3),
        )

    async def stop(self) -> None:
        """Accept no more, answer the accepted requests, flush, close. After a failure it only releases everything, as a
        crash would, and the next start recovers. Idempotent."""
        parts, self._parts = self._parts, None
        try:
            if parts is not None:
                await parts.stop(clean=self._failure is None)
                log.info("stopped", broker_id=self._config.broker_id, clean=self._failure is None)
            if isinstance(self._failure, Superseded):
                await self._note_superseded(self._failure)
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None
            self._over.set()

    @property
    def image(self) -> MetadataImage:
        """The metadata as this broker has it. Only while it runs."""
        return self.parts.metadata.image

    @property
    def parts(self) -> Parts:
        """The parts of the broker. Only while it runs."""
        assert self._parts is not None, "started"
        return self._parts

    def observe(self, subscriber: Callable[[ImageDelta], None]) -> None:
        """Give every later change of the metadata to `subscriber`, on the loop. Only while it runs."""
        assert self._parts is not None, "started"
        self._parts.metadata.subscribe(subscriber)

    async def over(self) -> None:
        """Wait until the broker has stopped, or must stop because something failed (see `failure`)."""
        await self._over.wait()

    def _fail(self, cause: BaseException) -> None:
        """Stop the broker, as it must not go on: the metadata disk failed, or a bug showed itself."""
        if self._failure is None:
            self._failure = cause if isinstance(cause, Exception) else HeadraceError(str(cause))
            log.critical("the broker stops", reason=str(cause), exc_info=cause)
            self._over.set()

    async def _note_superseded(self, error: Superseded) -> None:
        """Note that the quorum was recovered without this broker, so that no later process uses its metadata."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, note_superseded, self._ports.disk, self._config.data, str(error))

    async def _assemble(self) -> Parts:
        config, ports = self._config, self._ports
        foundation = await self._foundation()
        core = core_of(config, ports, foundation.identity, foundation.metadata, self._fail)
        parts = Parts(core, ports, metadata=foundation.metadata, peers=foundation.peers, engine=foundation.logs)
        parts.cluster.start()
        parts.logs.assignments.discard(foundation.left)
        try:
            await self._enter_cluster(parts, foundation)
        except BaseException:
            await parts.stop()
            raise
        return parts

    async def _foundation(self) -> Foundation:
        config, ports = self._config, self._ports
        disk, random = ports.disk, ports.random
        if config.redis is None:
            return await on_local_logs(
                config, clock=ports.clock, disk=disk, random=random, cleaning=ports.cleaning, on_failure=self._fail
            )
        try:
            from headrace.broker.foundation.redis import on_redis
        except ModuleNotFoundError as error:
            raise UsageError(
                f"The engine 'redis' needs the package {error.name}: pip install 'headrace[redis]'."
            ) from None
        return await on_redis(
            config,
            config.redis,
            disk=disk,
            random=random,
            cleans_in_child=ports.cleaning is not None,
            on_failure=self._fail,
        )

    async def _enter_cluster(self, parts: Parts, foundation: Foundation) -> None:
        """Bind, register and open the logs. A broker that is alone accepts connections only once it serves; the others
        must first reach the quorum. Clients are served once the broker is ready."""
        self._check_own_rights(parts, foundation)
        _begin_audit(parts)
        self._bound = await parts.requests.doors.bind(self._config.listeners().all)
        endpoints = self._endpoints()
        of_brokers = endpoint_at(endpoints, parts.core.inter_broker_listener)
        assert of_brokers is not None, "the listener between brokers is advertised"
        parts.peers.address = of_brokers.address
        if self._config.is_told_as_loopback:
            log.warning(
                "other brokers and clients are told an address of their own machine; where they run elsewhere, start "
                "this broker with --listen HOST:PORT, or --advertise",
                address=str(parts.peers.address),
                joins=[str(other) for other in self._config.join],
            )
        alone = foundation.is_alone
        if not alone:
            await parts.requests.listener.accept()
        await parts.membership.register(endpoints, self._config.rack, engine=foundation.kind)
        await parts.partitions.settled()
        await parts.start()
        if alone:
            await parts.requests.listener.accept()
        await parts.membership.become_ready()
        await parts.partitions.settled()
        parts.requests.start()

    def _check_own_rights(self, parts: Parts, foundation: Foundation) -> None:
        """Raises UsageError where there are other brokers, and they would refuse this one."""
        has_others = any(broker != parts.core.node for broker in parts.metadata.image.brokers)
        if has_others or (foundation.kind is Engine.LOCAL and not foundation.is_alone):
            caution = self._config.check_own_rights()
            if caution is not None:
                log.warning(caution)

    def _endpoints(self) -> list[Endpoint]:
        """Return the addresses that others are told."""
        return [
            Endpoint(listener=each.name, host=told.host, port=told.port or self._bound[each.name].port)
            for each in self._config.listeners().all
            if (told := each.advertised) is not None
        ]


def _begin_audit(parts: Parts) -> None:
    """Open the audit log, where there is one. Raises UsageError."""
    try:
        parts.requests.services.authority.start()
    except OSError as error:
        raise UsageError(
            f"The audit log cannot be written ({error.strerror or error}): set audit.log.file to a file that can be."
        ) from error
