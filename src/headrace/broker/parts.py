"""The parts of a running broker, joined; started and stopped in order."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId, IncarnationId, ProducerId
from headrace.base.ports import Clock, Disk, Objects, Random
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.elector import Elector
from headrace.broker.cluster.growing import Grower
from headrace.broker.cluster.membership import Membership
from headrace.broker.config import BrokerConfig
from headrace.broker.durable.api import DurableApi
from headrace.broker.durable.history import History
from headrace.broker.durable.recovering import Recovering
from headrace.broker.groups.service import GroupService
from headrace.broker.handlers import ALL
from headrace.broker.home.identity import Identity
from headrace.broker.kit.deferred import Deadlines
from headrace.broker.kit.sampled_rate import Window
from headrace.broker.kit.tasks import OnBug
from headrace.broker.metrics.requests import RequestCounts
from headrace.broker.moves.door import MoveDoor
from headrace.broker.partitions.condition import Condition, Descriptors
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.forwarding import Forwarder
from headrace.broker.partitions.frontiers import Frontiers
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.replication.copying import Copying, Me
from headrace.broker.replication.followers import Followers
from headrace.broker.replication.isr import IsrKeeper
from headrace.broker.replication.renewals import Renewals
from headrace.broker.replication.throttles import Throttles
from headrace.broker.requests.context import Services
from headrace.broker.requests.dispatch import Dispatcher
from headrace.broker.requests.fetch_sessions import FetchSessions
from headrace.broker.requests.producer_ids import ProducerIdAllocator
from headrace.broker.requests.quotas import ClientQuotas
from headrace.broker.requests.read_replicas import ReadReplicas
from headrace.broker.tiering import Tiering
from headrace.broker.upkeep.cleaner import Cleaner, CleaningRunner, Pace, thread_runner
from headrace.broker.upkeep.examiner import Examiner
from headrace.broker.upkeep.housekeeper import Housekeeper
from headrace.broker.upkeep.reporter import Reporter
from headrace.controller.asks import AllocateProducerIds
from headrace.controller.decision import Refusal
from headrace.metadata.config_table import RACK_AWARE
from headrace.metadata.configs import ConfigValue, broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.net.peer.peerframes import API_KEY as PEERS_API
from headrace.net.peer.peers import Peers
from headrace.net.server.listener import Crowd, Listener
from headrace.net.server.request_budget import Bounds
from headrace.storage.engine import LogEngine
from headrace.wire.ailments import API_KEY as AILMENTS_API
from headrace.wire.ailments import State
from headrace.wire.durable import API_KEY as DURABLE_API
from headrace.wire.moves import API_KEY as MOVES_API
from headrace.wire.replica_fetch import API_KEY as REPLICA_API

if TYPE_CHECKING:
    from headrace.broker.metrics.endpoint import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world, as this broker reaches it."""

    clock: Clock
    random: Random
    disk: Disk
    objects: Objects | None
    """The durable store; None: nothing is exported."""
    cleaning: CleaningRunner | None
    """Runs the slow work of compaction; None: a worker thread does."""
    descriptors: Descriptors | None = None
    """Counts this process's file descriptors; None: nobody does."""


class Parts:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        *,
        identity: Identity,
        metadata: MetadataDriver,
        peers: Peers,
        engine: LogEngine,
        on_bug: OnBug,
    ) -> None:
        self.metadata = metadata
        self.peers = peers
        self._config = config
        self._ports = ports
        self._on_bug = on_bug
        self._flusher = Flusher(engine, on_bug)
        self._room = DiskRoom(engine.space, lambda: self._number("log.disk.min.free.bytes"), on_bug)
        self.partitions = Partitions(
            node=config.broker_id,
            directory_id=identity.directory_id,
            engine=engine,
            flusher=self._flusher,
            on_bug=on_bug,
            clock=ports.clock,
            room=self._room,
            broker_configs=config.configs,
            has_store=ports.objects is not None,
        )
        self._forwarder = Forwarder(
            node=config.broker_id, image=lambda: metadata.image, address_of=self._address_of, on_bug=on_bug
        )
        self.partitions.forward = self._forwarder.take
        self.partitions.on_led.append(lambda led: self._forwarder.on_led(led.topic_partition, led))
        self.controller = ControllerService(
            node=config.broker_id,
            cluster_id=identity.cluster_id,
            configs=config.configs,
            metadata=metadata,
            clock=ports.clock,
            has_store=ports.objects is not None,
            on_bug=on_bug,
        )
        peers.on_peer_dead(self.controller.on_peer_dead)
        self._elector = Elector(node=config.broker_id, configs=config.configs, metadata=metadata, on_bug=on_bug)
        self._grower = Grower(metadata=metadata, on_bug=on_bug)
        self.control = Control(
            metadata=metadata,
            controller=self.controller,
            address_of=self._address_of,
            others=self._others,
            settled=self.partitions.settled,
        )
        self._throttles = Throttles(
            node=config.broker_id, configs=config.configs, image=metadata.image, clock=ports.clock
        )
        self._followers = followers = Followers(
            cluster_id=identity.cluster_id,
            node=config.broker_id,
            partitions=self.partitions,
            image=lambda: metadata.image,
            clock=ports.clock,
            throttle=self._throttles.leader,
            on_bug=on_bug,
        )
        self.membership = Membership(
            identity=identity,
            incarnation=IncarnationId(uuid.UUID(int=ports.random.getrandbits(128), version=4)),
            metadata=metadata,
            control=self.control,
            interval_s=self._number("broker.heartbeat.interval.ms") / 1000,
            session_s=self._number("broker.session.timeout.ms") / 1000,
            lag_max_s=self._number("replica.lag.time.max.ms") / 1000,
            on_contact=self.partitions.on_contact,
            follow=self._follow,
            is_full=lambda: self._room.is_short,
            states=lambda: self._condition.states,
            now_ms=ports.clock.now_ms,
            on_end=on_bug,
        )
        self._metrics_listen = self._value("metrics.listen")
        advertised = {handler.key: handler.versions for handler in ALL if handler.advertised}
        self._counts = RequestCounts(advertised) if self._metrics_listen else None
        self.history = self._open_history()
        self._frontiers = None if ports.objects is None else Frontiers(ports.objects, ports.clock)
        self.partitions.durable_wins.frontiers = self._frontiers
        self._services = self._make_services(advertised)
        self._renewals = Renewals(
            node=config.broker_id,
            broker_epoch=lambda: self.membership.epoch,
            partitions=self.partitions,
            control=self.control,
            on_bug=on_bug,
        )
        self._condition = Condition(
            partitions=self.partitions,
            room=self._room,
            sources=(partial(of_journal, engine), self._states_of_work),
            damaged=self._renewals.ailments,
            heard=lambda: self.controller.heard,
            descriptors=ports.descriptors,
            on_bug=on_bug,
        )
        self.groups = self._services.groups
        self._copying = Copying(
            Me(
                cluster_id=identity.cluster_id,
                node=config.broker_id,
                broker_epoch=lambda: self.membership.epoch,
                address_of=self._address_of,
                quiet=self.partitions.quiet,
                throttle=self._throttles.follower,
                on_dead=self.controller.on_peer_dead,
                on_bug=on_bug,
                on_damaged=self._renewals.note,
                on_half_changed=self.partitions.open_anew,
                begins_anew=self._renewals.begins_anew,
                beginning=None if self._frontiers is None else self._frontiers.beginning,
            )
        )
        self.partitions.feeding = self._copying
        self._isr = IsrKeeper(
            node=config.broker_id,
            broker_epoch=lambda: self.membership.epoch,
            partitions=self.partitions,
            room=self._room,
            control=self.control,
            image=lambda: metadata.image,
            heard_at=followers.heard_at,
            clock=ports.clock,
            lag_max_s=self._number("replica.lag.time.max.ms") / 1000,
            on_bug=on_bug,
        )
        self._durable_api = DurableApi(
            image=lambda: metadata.image,
            sweeper=lambda: None if self.tiering is None else self.tiering.sweeper,
            merger=lambda: None if self.tiering is None else self.tiering.merger,
            recovering=self._make_recovering(),
            on_bug=on_bug,
        )
        handlers = {handler.key: handler for handler in ALL}
        door = MoveDoor(
            node=config.broker_id,
            image=lambda: metadata.image,
            partitions=self.partitions,
            control=self.control,
            moves=lambda: None if self.tiering is None else self.tiering.moves,
        )
        private = {
            PEERS_API: peers.serve,
            REPLICA_API: followers.serve,
            AILMENTS_API: self._condition.serve,
            DURABLE_API: self._durable_api.serve,
            MOVES_API: door.serve,
        }
        counts = self._counts
        on_response = None if counts is None else counts.on_response
        dispatcher = Dispatcher(self._services, handlers, private=private, on_bug=on_bug, on_response=on_response)
        serve = dispatcher.serve if counts is None else counts.counted(dispatcher.serve)
        self.listener = Listener(serve, self._bounds())
        self.listener.crowd_max = self._crowd_max(metadata.image)
        self.open: Final = dispatcher.open
        """Begins to serve clients."""
        self.metrics: Endpoint | None = None
        """The endpoint of metrics, where they are asked for, once it is started."""
        self._reporter = Reporter(lambda: metadata.image, on_bug)
        self._housekeeper: Housekeeper | None = None
        self._cleaner: Cleaner | None = None
        self._examiner: Examiner | None = None
        self.tiering: Tiering | None = None

    def _states_of_work(self) -> Iterator[State]:
        """Iterate over the problems of background work."""
        if self._cleaner is not None:
            yield from self._cleaner.states()
        if self.tiering is not None:
            yield from self.tiering.states()

    def _follow(self, delta: ImageDelta) -> None:
        """Hand a change of the image to the parts. Liveness comes first: a broker that is fenced now is not proposed
        for an ISR that it has just left."""
        self._throttles.on_delta(delta)
        self._services.quotas.on_delta(delta)
        self._followers.on_delta(delta)
        self._forwarder.on_delta(delta)
        self.partitions.on_delta(delta)
        if self._cleaner is not None:
            self._cleaner.on_delta(delta)
        if delta.before.broker_configs is not delta.after.broker_configs:
            self.listener.crowd_max = self._crowd_max(delta.after)

    def _make_recovering(self) -> Recovering | None:
        """Return None where there is no store, and so no history to recover from."""
        if self._frontiers is None:
            return None
        return Recovering(
            node=self._config.broker_id,
            image=lambda: self.metadata.image,
            control=self.control,
            frontiers=self._frontiers,
        )

    def _make_services(self, advertised: Mapping[int, tuple[int, int]]) -> Services:
        config, ports = self._config, self._ports
        return Services(
            node_id=config.broker_id,
            configs=config.configs,
            clock=ports.clock,
            random=ports.random,
            metadata=self.metadata,
            control=self.control,
            controller=self.controller,
            address_of=self._address_of,
            partitions=self.partitions,
            read_replicas=ReadReplicas(lambda: self.metadata.image, by_rack=self._selects_by_rack),
            fetch_sessions=FetchSessions(ports.clock, ports.random),
            producer_ids=ProducerIdAllocator(self._allocate_producer_ids),
            groups=GroupService(
                node=config.broker_id,
                partitions=self.partitions,
                metadata=self.metadata,
                submit=self.control.submit,
                clock=ports.clock,
                random=ports.random,
                configs=config.configs,
                lease=self.membership.lease,
                on_bug=self._on_bug,
            ),
            deadlines=Deadlines(),
            quotas=ClientQuotas(
                self.metadata.image,
                ports.clock,
                Window(self._number("quota.window.num"), self._number("quota.window.size.seconds")),
            ),
            answer_bytes_max=lambda: self.listener.room.answer_bytes_max,
            history=self.history,
            on_error=_nobody_counts if self._counts is None else self._counts.on_error,
            api_versions=advertised,
        )

    def _open_history(self) -> History | None:
        objects = self._ports.objects
        if objects is None:
            return None
        return History(objects, cache_bytes=self._number("durable.cache.bytes"), clock=self._ports.clock)

    def _crowd_max(self, image: MetadataImage) -> Crowd:
        config = self._config
        return Crowd(
            *(
                broker_value(image, config.configs, key, node=config.broker_id).number()
                for key in ("max.connections", "max.connections.per.ip")
            )
        )

    def _bounds(self) -> Bounds:
        return Bounds(
            queued_bytes_max=self._number("queued.max.bytes"), idle_ms_max=self._number("connections.max.idle.ms")
        )

    def _number(self, key: str) -> int:
        return self._config_value(key).number()

    def _value(self, key: str) -> str:
        return self._config_value(key).text()

    def _config_value(self, key: str) -> ConfigValue:
        config = self._config
        return broker_value(self.metadata.image, config.configs, key, node=config.broker_id)

    @property
    def _selects_by_rack(self) -> bool:
        return self._value("replica.selector.class") == RACK_AWARE

    async def _allocate_producer_ids(self) -> tuple[ProducerId, int] | Refusal:
        ask = AllocateProducerIds(broker_id=self._config.broker_id, broker_epoch=self.membership.epoch)
        return await self.control.submit(ask)

    def _address_of(self, broker: BrokerId) -> Address | None:
        known = self.peers.book.find(broker, 0)
        return None if known is None else Address(*known)

    def _others(self) -> list[Address]:
        """Return every known address of another broker, those to join first."""
        image, me = self.metadata.image, self._config.broker_id
        registered = [broker.endpoints[0] for broker in image.brokers.values() if broker.id != me and broker.endpoints]
        known = [*self._config.join, *(Address(endpoint.host, endpoint.port) for endpoint in registered)]
        return list(dict.fromkeys(known))

    async def start(self) -> None:
        """Begin the background work, once everything is recovered and registered."""
        if self._counts is not None:
            await self._serve_metrics(self._counts)
        self._housekeeper = Housekeeper(
            node=self._config.broker_id,
            configs=self._config.configs,
            partitions=self.partitions,
            metadata=self.metadata,
            clock=self._ports.clock,
            on_bug=self._on_bug,
        )
        self._housekeeper.start()
        self._room.start()
        self._condition.start()
        self._isr.start()
        if self._config.report_metadata:
            self._reporter.start()
        self._cleaner = self._make_cleaner()
        self._cleaner.start()
        self._examiner = Examiner(
            partitions=self.partitions,
            clock=self._ports.clock,
            interval_ms=self._number("log.scrub.interval.ms"),
            bytes_per_second=self._number("log.scrub.io.max.bytes.per.second"),
            on_bug=self._on_bug,
        )
        self._examiner.start()
        if self._ports.objects is not None and self.history is not None:
            self.tiering = Tiering(
                partitions=self.partitions,
                metadata=self.metadata,
                control=self.control,
                objects=self._ports.objects,
                clock=self._ports.clock,
                number=self._number,
                node=self._config.broker_id,
                broker_epoch=lambda: self.membership.epoch,
                history=self.history,
                on_bug=self._on_bug,
            )
            self.tiering.start()

    async def _serve_metrics(self, counts: RequestCounts) -> None:
        """Serve metrics. The modules for that are loaded only here. Raises UsageError."""
        from headrace.broker.metrics.collecting import Collector, Watched
        from headrace.broker.metrics.endpoint import Endpoint

        watched = Watched(
            node=self._config.broker_id,
            partitions=self.partitions,
            flusher=self._flusher,
            metadata=self.metadata,
            quotas=self._services.quotas,
            gauge=self.listener.gauge,
            counts=counts,
            condition=self._condition,
            room=self._room,
        )
        self.metrics = Endpoint(Collector(watched).collect)
        await self.metrics.start(self._metrics_listen)

    def _make_cleaner(self) -> Cleaner:
        return Cleaner(
            partitions=self.partitions,
            clock=self._ports.clock,
            random=self._ports.random,
            run=self._ports.cleaning or thread_runner(self._ports.disk),
            pace=self._cleaning_pace,
            image=self.metadata.image,
            on_bug=self._on_bug,
        )

    def _cleaning_pace(self, image: MetadataImage) -> Pace:
        configs, node = self._config.configs, self._config.broker_id
        return Pace(
            broker_value(image, configs, "log.cleaner.backoff.ms", node=node).number(),
            broker_value(image, configs, "log.cleaner.io.max.bytes.per.second", node=node).fraction(),
        )

    async def stop(self, *, clean: bool = True) -> None:
        """Hand leadership to others, accept no more, answer the accepted requests, flush, close. Not clean: write
        nothing more (see `Partitions.close`)."""
        if clean:
            await self.membership.leave()
        if self.metrics is not None:
            await self.metrics.stop()
        self.controller.stop()
        self._room.stop()
        self._condition.stop()
        self._elector.stop()
        self._grower.stop()
        self._reporter.stop()
        if self._housekeeper is not None:
            self._housekeeper.stop()
        if self._cleaner is not None:
            await self._cleaner.stop()
        if self._examiner is not None:
            await self._examiner.stop()
        await self._durable_api.stop()
        if self.tiering is not None:
            await self.tiering.stop()
        self.partitions.wake_readers()
        self._followers.answer_all()
        self._services.groups.begin_stop()
        await self._forwarder.stop()
        await self.listener.stop()
        await self._services.groups.stop()
        await self._isr.stop()
        await self._renewals.stop()
        await self._copying.stop()
        self.partitions.durable_wins.stop()
        await self.partitions.close(clean=clean)
        self._services.deadlines.close()
        if self.history is not None:
            self.history.stop()
        if self._frontiers is not None:
            self._frontiers.stop()
        await self.control.stop()
        await self.metadata.stop()
        self.peers.stop()
        await asyncio.sleep(0)


def of_journal(engine: LogEngine) -> Iterator[State]:
    if engine.has_given_up_journal:
        text = "it writes no journal any more, for a disk failed, and its flushes are slower for it"
        yield State(kind="journal given up", text=text, todo="see to its disk, then restart it")


def _nobody_counts(api: int, error: int) -> None:
    """Counts no error, as metrics are not asked for."""
