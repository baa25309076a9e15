"""Builds the room of the requests: the listener, the dispatcher, and the services that handlers use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.ids import ProducerId
from headrace.base.values import Value
from headrace.broker.cluster.building import Cluster
from headrace.broker.core import Core
from headrace.broker.groups.service import GroupService
from headrace.broker.kit.deferred import Deadlines
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.sampled_rate import Window
from headrace.broker.own_principal import AUTHORIZER, SUPER_USERS, super_users
from headrace.broker.partitions.intake.forwarding import Forwarder
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.replication.building import Replication
from headrace.broker.requests.bucket_quotas import BucketQuotas
from headrace.broker.requests.context import Offer, Services
from headrace.broker.requests.dispatch import Dispatcher
from headrace.broker.requests.doors import Doors
from headrace.broker.requests.fetch_sessions import FetchSessions
from headrace.broker.requests.private import Private
from headrace.broker.requests.producer_ids import ProducerIdAllocator
from headrace.broker.requests.quotas import ClientQuotas
from headrace.broker.requests.read_replicas import ReadReplicas
from headrace.broker.requests.rights import Authority
from headrace.broker.traces import Traces
from headrace.broker.transactions.building import Transactions
from headrace.controller.asks.brokers import AllocateProducerIds
from headrace.controller.decision import Refusal
from headrace.metadata.config_table import RACK_AWARE
from headrace.metadata.configs import broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.net.server.connection import Serve
from headrace.net.server.greeting import Witness
from headrace.net.server.listener import Crowd, Listener
from headrace.net.server.request_budget import Bounds
from headrace.security.authorizer import Authorizer

if TYPE_CHECKING:
    from headrace.broker.durable.history import History
    from headrace.broker.requests.audit import AuditLog
    from headrace.broker.requests.authentication import Authentication


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Requests(Value):
    """The service of requests, of clients and of other brokers."""

    core: Core
    services: Services
    transactions: Transactions
    dispatcher: Dispatcher
    listener: Listener
    logins: Authentication | None
    """How clients log in by SASL; None: no listener has it."""
    doors: Doors
    forwarder: Forwarder
    replication: Replication

    @property
    def authentication(self) -> Authentication:
        """Only of a broker that has a listener with SASL."""
        assert self.logins is not None, "a listener has SASL"
        return self.logins

    def start(self) -> None:
        """Serve clients from now on: the broker is ready."""
        self.dispatcher.open()

    def on_delta(self, delta: ImageDelta) -> None:
        """Adopt changed limits of connections, and how clients are authenticated."""
        if self.logins is not None:
            self.logins.on_delta(delta)
        if delta.before.broker_configs is not delta.after.broker_configs:
            self.listener.crowd_max = _crowd_max(self.core, delta.after)

    async def stop(self) -> None:
        """Accept no more, and answer the accepted requests."""
        self.services.partitions.wake_readers()
        self.replication.followers.answer_all()
        self.services.groups.begin_stop()
        self.transactions.begin_stop()
        await self.forwarder.stop()
        self.doors.stop()
        await self.listener.stop()
        if self.logins is not None:
            self.logins.stop()
        await self.services.groups.stop()
        await self.transactions.stop()
        self.services.deadlines.close()
        self.services.authority.stop()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Counting(Value):
    """Counts requests, where metrics are asked for."""

    counted: Callable[[Serve], Serve]
    """Returns a function that serves as the given one does, and counts."""
    on_response: Callable[[int, object], None]
    on_error: Callable[[int, int], object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Others(Value):
    """The other rooms, as far as requests need them."""

    cluster: Cluster
    partitions: Partitions
    replication: Replication
    forwarder: Forwarder
    quotas: ClientQuotas
    history: History | None
    lease: Lease
    traces: Traces | None


def build_quotas(core: Core) -> ClientQuotas:
    window = Window(core.number("quota.window.num"), core.number("quota.window.size.seconds"))
    return ClientQuotas(core.image(), core.clock, window)


def build_requests(
    core: Core,
    others: Others,
    offers: Collection[Offer],
    private: Mapping[int, Private],
    counting: Counting | None,
) -> Requests:
    """Build the room. `offers`: the APIs that are served; `private`: those of other brokers and of Headrace's own
    tools, by API key. `counting`: None: no metrics are asked for."""
    by_key = {offer.key: offer for offer in offers}
    producer_ids = ProducerIdAllocator(lambda: _allocate_producer_ids(core, others.cluster))
    authorizer = _authorizer(core, others.cluster)
    groups = _groups(core, others, authorizer)
    transactions = Transactions(
        core, others.cluster, others.partitions, groups, others.lease, new_producer_id=producer_ids.take
    )
    services = _services(
        core,
        others,
        offers,
        counting,
        lambda: listener.room.answer_bytes_max,
        authorizer=authorizer,
        producer_ids=producer_ids,
        groups=groups,
        transactions=transactions,
    )
    dispatcher = Dispatcher(
        services,
        by_key,
        private=private,
        on_bug=core.on_bug,
        on_response=None if counting is None else counting.on_response,
    )
    serve = dispatcher.serve if counting is None else counting.counted(dispatcher.serve)
    serve = serve if others.traces is None else others.traces.traced(serve)
    bounds = Bounds(
        queued_bytes_max=core.number("queued.max.bytes"), idle_ms_max=core.number("connections.max.idle.ms")
    )
    listener = Listener(serve, bounds)
    listener.crowd_max = _crowd_max(core, core.image())
    listener.newcomer_waits_ms = services.bucket_quotas.newcomer_waits_ms
    witness = services.authority.audit
    logins = _logins(core, witness)
    requests = Requests(
        core=core,
        services=services,
        transactions=transactions,
        dispatcher=dispatcher,
        listener=listener,
        logins=logins,
        doors=Doors(core, listener, logins, witness),
        forwarder=others.forwarder,
        replication=others.replication,
    )
    others.cluster.metadata.subscribe(requests.on_delta)
    return requests


def _services(
    core: Core,
    others: Others,
    offers: Collection[Offer],
    counting: Counting | None,
    answer_bytes_max: Callable[[], int],
    *,
    authorizer: Authorizer | None,
    producer_ids: ProducerIdAllocator,
    groups: GroupService,
    transactions: Transactions,
) -> Services:
    cluster = others.cluster
    return Services(
        node_id=core.node,
        configs=core.config.described,
        clock=core.clock,
        random=core.random,
        metadata=cluster.metadata,
        control=cluster.control,
        controller=cluster.controller,
        address_of=cluster.address_of,
        partitions=others.partitions,
        forward=others.forwarder.take,
        read_replicas=ReadReplicas(core.image, by_rack=core.text("replica.selector.class") == RACK_AWARE),
        fetch_sessions=FetchSessions(core.clock, core.random),
        producer_ids=producer_ids,
        groups=groups,
        of_transactions=transactions,
        deadlines=Deadlines(),
        quotas=others.quotas,
        answer_bytes_max=answer_bytes_max,
        history=others.history,
        bucket_quotas=_bucket_quotas(core, cluster),
        authority=Authority(authorizer, None if authorizer is None else _audit_log(core)),
        on_error=_nobody_counts if counting is None else counting.on_error,
        api_versions={offer.key: offer.versions for offer in offers if offer.advertised},
    )


def _logins(core: Core, witness: Witness | None) -> Authentication | None:
    """Return how clients of listeners with SASL are authenticated; None: there are no such listeners."""
    if not any(each.protocol.has_sasl for each in core.config.listeners().all):
        return None
    from headrace.broker.requests.authentication import Authentication

    return Authentication(core, witness)


def _bucket_quotas(core: Core, cluster: Cluster) -> BucketQuotas:
    """Return the quotas, which follow the image."""
    burst_s = core.number("controller.quota.window.num") * core.number("controller.quota.window.size.seconds")
    quotas = BucketQuotas(core.image(), core.clock, burst_s)
    cluster.metadata.subscribe(quotas.on_delta)
    return quotas


def _authorizer(core: Core, cluster: Cluster) -> Authorizer | None:
    """Return the authorizer, which follows the ACLs of the image; None where none is set."""
    if not core.text(AUTHORIZER):
        return None
    authorizer = Authorizer(
        super_users(core.text(SUPER_USERS)),
        allows_where_no_acl=core.flag("allow.everyone.if.no.acl.found"),
    )
    authorizer.use(core.image().acls)
    cluster.metadata.subscribe(lambda delta: authorizer.use(delta.after.acls))
    return authorizer


def _audit_log(core: Core) -> AuditLog:
    from headrace.broker.requests.audit import AuditLog

    file = core.text("audit.log.file")
    return AuditLog(
        Path(file) if file else core.config.data / "audit.log",
        core.clock,
        grants=core.flag("audit.log.grants"),
        bytes_max=core.number("audit.log.max.bytes"),
        files=core.number("audit.log.max.files"),
    )


def _groups(core: Core, others: Others, authorizer: Authorizer | None) -> GroupService:
    return GroupService(
        node=core.node,
        partitions=others.partitions,
        metadata=others.cluster.metadata,
        submit=others.cluster.control.submit,
        clock=core.clock,
        random=core.random,
        configs=core.config.configs,
        lease=others.lease,
        on_bug=core.on_bug,
        authorizer=authorizer,
    )


async def _allocate_producer_ids(core: Core, cluster: Cluster) -> tuple[ProducerId, int] | Refusal:
    ask = AllocateProducerIds(broker_id=core.node, broker_epoch=core.broker_epoch())
    return await cluster.control.submit(ask)


def _crowd_max(core: Core, image: MetadataImage) -> Crowd:
    keys = ("max.connections", "max.connections.per.ip")
    return Crowd(*(broker_value(image, core.config.configs, key, node=core.node).number() for key in keys))


def _nobody_counts(api: int, error: int) -> None:
    """Counts no error, as metrics are not asked for."""
