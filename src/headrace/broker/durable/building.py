"""Builds the room of the durable history: readers of the store, writers to it, and requests about it. A broker without
a store loads none of the first two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.base.limits import STORE_CALLS_AT_ONCE_MAX
from headrace.base.values import Value
from headrace.wire.ailments import NO_STORE, State

if TYPE_CHECKING:
    from headrace.base.ports import Objects
    from headrace.broker.cluster.building import Cluster
    from headrace.broker.core import Core
    from headrace.broker.durable.api import DurableApi
    from headrace.broker.durable.exporter import Exporter
    from headrace.broker.durable.history import History
    from headrace.broker.durable.history_keeper import HistoryKeeper
    from headrace.broker.durable.merger import Merger
    from headrace.broker.durable.recovering import Recovering
    from headrace.broker.durable.sweeper import Sweeper
    from headrace.broker.kit.store_threads import StoreThreads
    from headrace.broker.partitions.logs.frontiers import Frontiers
    from headrace.broker.partitions.partitions import Partitions
    from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StoreReaders(Value):
    """The readers of the durable store, for consumers and for logs that begin behind history."""

    history: History
    frontiers: Frontiers

    def stop(self) -> None:
        self.history.stop()
        self.frontiers.stop()


def build_store_readers(core: Core) -> StoreReaders | None:
    """Build the readers; None: there is no durable store."""
    if core.objects is None:
        return None
    from headrace.broker.durable.history import History
    from headrace.broker.partitions.logs.frontiers import Frontiers

    return StoreReaders(
        history=History(core.objects, cache_bytes=core.number("durable.cache.bytes"), clock=core.clock),
        frontiers=Frontiers(core.objects, core.clock),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Exports(Value):
    """The background work on the durable store, of a broker that has one."""

    cluster: Cluster
    history: History
    threads: StoreThreads
    exporter: Exporter
    keeper: HistoryKeeper
    sweeper: Sweeper
    merger: Merger

    def start(self) -> None:
        self.exporter.start()
        self.cluster.metadata.subscribe(self.keeper.on_delta)
        self.keeper.start()
        self.sweeper.start()

    async def stop(self) -> None:
        await self.exporter.stop()
        await self.keeper.stop()
        await self.sweeper.stop()
        self.threads.stop()


class Durable:
    """Durable history, as this broker has to do with it."""

    def __init__(
        self, exports: Exports | None, image: Callable[[], MetadataImage], make_api: Callable[[], DurableApi]
    ) -> None:
        """`exports`: None: there is no durable store."""
        self.exports: Final = exports
        self._image = image
        self._make_api = make_api
        self._api: DurableApi | None = None
        self._is_started = False

    @property
    def api(self) -> DurableApi:
        """It answers requests about durable history. It is loaded and made for the first of them."""
        if self._api is None:
            self._api = self._make_api()
            if self._is_started:
                self._api.start()
        return self._api

    def states(self) -> Iterator[State]:
        """Iterate over the problems of the exports."""
        if self.exports is not None:
            yield from self.exports.exporter.states()
        elif any(catalog.entries for catalog in self._image().catalog.values()):
            text = "it has no durable store, and can neither read history nor be given partitions that have some"
            yield State(kind=NO_STORE, text=text, todo="restart it with the durable.url of the other brokers")

    def start(self) -> None:
        if self.exports is not None:
            self.exports.start()
        self._is_started = True
        if self._api is not None:
            self._api.start()

    async def stop(self) -> None:
        if self._api is not None:
            await self._api.stop()
        if self.exports is not None:
            await self.exports.stop()


def build_durable(core: Core, cluster: Cluster, partitions: Partitions, readers: StoreReaders | None) -> Durable:
    """Build the room."""
    exports: Exports | None = None
    recovering: Recovering | None = None
    if core.objects is not None and readers is not None:
        from headrace.broker.durable.recovering import Recovering

        exports = _build_exports(core, cluster, partitions, core.objects, readers.history)
        recovering = Recovering(node=core.node, image=core.image, control=cluster.control, frontiers=readers.frontiers)

    def make_api() -> DurableApi:
        from headrace.broker.durable.api import DurableApi

        return DurableApi(
            image=core.image,
            sweeper=None if exports is None else exports.sweeper,
            merger=None if exports is None else exports.merger,
            recovering=recovering,
            on_bug=core.on_bug,
        )

    return Durable(exports, core.image, make_api)


def _build_exports(core: Core, cluster: Cluster, partitions: Partitions, objects: Objects, history: History) -> Exports:
    from headrace.broker.durable.exporter import Exporter
    from headrace.broker.durable.merger import Merger
    from headrace.broker.kit.store_threads import StoreThreads

    threads = StoreThreads(STORE_CALLS_AT_ONCE_MAX, "store")
    exporter = Exporter(
        partitions=partitions,
        metadata=cluster.metadata,
        control=cluster.control,
        cluster_id=core.cluster_id,
        objects=objects,
        threads=threads,
        clock=core.clock,
        bytes_per_second=core.number("durable.export.io.max.bytes.per.second"),
        on_bug=core.on_bug,
    )
    return Exports(
        cluster=cluster,
        history=history,
        threads=threads,
        exporter=exporter,
        keeper=_keeper(core, cluster, partitions, objects, exporter, threads),
        sweeper=_sweeper(core, cluster, partitions, objects, exporter, threads),
        merger=Merger(
            partitions=partitions,
            metadata=cluster.metadata,
            control=cluster.control,
            objects=objects,
            clock=core.clock,
            turn_of=exporter.turn_of,
            mirror_up=exporter.mirror_up,
            threads=threads,
        ),
    )


def _keeper(
    core: Core, cluster: Cluster, partitions: Partitions, objects: Objects, exporter: Exporter, threads: StoreThreads
) -> HistoryKeeper:
    from headrace.broker.durable.history_keeper import HistoryKeeper

    return HistoryKeeper(
        partitions=partitions,
        control=cluster.control,
        objects=objects,
        threads=threads,
        clock=core.clock,
        interval_ms=core.number("log.retention.check.interval.ms"),
        has_topic=lambda topic_id: core.image().topic_by_id(topic_id) is not None,
        look_again=exporter.look_again,
        on_bug=core.on_bug,
    )


def _sweeper(
    core: Core, cluster: Cluster, partitions: Partitions, objects: Objects, exporter: Exporter, threads: StoreThreads
) -> Sweeper:
    from headrace.broker.durable.sweeper import Sweeper

    return Sweeper(
        partitions=partitions,
        metadata=cluster.metadata,
        cluster_id=core.cluster_id,
        objects=objects,
        threads=threads,
        clock=core.clock,
        grace_ms=core.number("durable.sweep.grace.ms"),
        interval_ms=core.number("durable.sweep.interval.ms"),
        look_again=exporter.look_again,
        on_bug=core.on_bug,
    )
