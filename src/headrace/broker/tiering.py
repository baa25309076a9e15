"""The background work of a broker with a durable store: exports, retention of history, the sweep, and moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.base.limits import STORE_CALLS_AT_ONCE_MAX
from headrace.base.ports import Clock, Objects
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.durable.exporter import Exporter
from headrace.broker.durable.history import History
from headrace.broker.durable.history_keeper import HistoryKeeper
from headrace.broker.durable.merger import Merger
from headrace.broker.durable.sweeper import Sweeper
from headrace.broker.kit.store_threads import StoreThreads
from headrace.broker.kit.tasks import OnBug
from headrace.broker.moves.service import Moves
from headrace.broker.partitions.partitions import Partitions
from headrace.wire.ailments import State


class Tiering:
    """One per broker that has a durable store. `number` gives the value of a broker config."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        metadata: MetadataDriver,
        control: Control,
        objects: Objects,
        clock: Clock,
        number: Callable[[str], int],
        node: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
        history: History,
        on_bug: OnBug,
    ) -> None:
        self._metadata = metadata
        self._threads = StoreThreads(STORE_CALLS_AT_ONCE_MAX, "store")
        self._exporter = Exporter(
            partitions=partitions,
            metadata=metadata,
            control=control,
            objects=objects,
            threads=self._threads,
            clock=clock,
            bytes_per_second=number("durable.export.io.max.bytes.per.second"),
            on_bug=on_bug,
        )
        self._keeper = HistoryKeeper(
            partitions=partitions,
            control=control,
            objects=objects,
            threads=self._threads,
            clock=clock,
            interval_ms=number("log.retention.check.interval.ms"),
            has_topic=lambda topic_id: metadata.image.topic_by_id(topic_id) is not None,
            look_again=self._exporter.look_again,
            on_bug=on_bug,
        )
        self.sweeper = Sweeper(
            partitions=partitions,
            metadata=metadata,
            objects=objects,
            threads=self._threads,
            clock=clock,
            grace_ms=number("durable.sweep.grace.ms"),
            interval_ms=number("durable.sweep.interval.ms"),
            look_again=self._exporter.look_again,
            on_bug=on_bug,
        )
        self.merger = Merger(
            partitions=partitions,
            metadata=metadata,
            control=control,
            objects=objects,
            clock=clock,
            turn_of=self._exporter.turn_of,
            mirror_up=self._exporter.mirror_up,
            threads=self._threads,
        )
        self.moves = Moves(
            node=node,
            broker_epoch=broker_epoch,
            image=lambda: metadata.image,
            partitions=partitions,
            control=control,
            exporter=self._exporter,
            history=history,
            clock=clock,
            on_bug=on_bug,
        )

    def states(self) -> Iterator[State]:
        """Iterate over the problems of the exports."""
        return self._exporter.states()

    def start(self) -> None:
        self._exporter.start()
        self._metadata.subscribe(self._keeper.on_delta)
        self._keeper.start()
        self.sweeper.start()
        self._metadata.subscribe(self.moves.on_delta)
        self.moves.start()

    async def stop(self) -> None:
        await self.moves.stop()
        await self._exporter.stop()
        await self._keeper.stop()
        await self.sweeper.stop()
        self._threads.stop()
