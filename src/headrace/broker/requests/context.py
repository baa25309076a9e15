"""What a handler is given: the broker's services, and one request's own facts. Handlers keep no state of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.ports import Clock, Random
from headrace.metadata.image import MetadataImage
from headrace.net.server.connection import Answer, Connection, Later

if TYPE_CHECKING:
    from headrace.broker.cluster.control import Control
    from headrace.broker.cluster.controller_service import ControllerService
    from headrace.broker.cluster.driver import MetadataDriver
    from headrace.broker.durable.history import History
    from headrace.broker.groups.service import GroupService
    from headrace.broker.kit.deferred import Deadlines, Deferred
    from headrace.broker.partitions.partitions import Partitions
    from headrace.broker.requests.fetch_sessions import FetchSessions
    from headrace.broker.requests.producer_ids import ProducerIdAllocator
    from headrace.broker.requests.quotas import ClientQuotas
    from headrace.broker.requests.read_replicas import ReadReplicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The broker's parts, as handlers see them. Made once, at boot."""

    node_id: BrokerId
    configs: Mapping[str, str]
    """The static broker configs, by Kafka's names, as the user gave them."""
    clock: Clock
    random: Random
    metadata: MetadataDriver
    control: Control
    controller: ControllerService
    address_of: Callable[[BrokerId], Address | None]
    """Where a broker is reached by others, where that is known."""
    partitions: Partitions
    read_replicas: ReadReplicas
    fetch_sessions: FetchSessions
    producer_ids: ProducerIdAllocator
    groups: GroupService
    deadlines: Deadlines
    quotas: ClientQuotas
    answer_bytes_max: Callable[[], int]
    """How large an answer may be now, for the room that slow readers leave."""
    on_error: Callable[[int, int], object]
    """Told of an error in an answer that the dispatcher does not see: its API key, and which."""
    history: History | None
    """Durable history, where there is a store."""
    api_versions: Mapping[int, tuple[int, int]]
    """What is advertised: API key to its lowest and highest version."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request's facts. `image` is read once, so that the whole request is answered from one state."""

    services: Services
    image: MetadataImage
    version: int
    client_id: str
    client_host: str
    received_bytes: int


Shortcut: TypeAlias = Callable[[memoryview, Connection], "Answer | Later | Deferred | None"]
"""Serves the usual form of a request from its frame, without the length; None, with nothing done, leaves it to the
handler. The result of a `Deferred` is an `Answer`."""
Handle: TypeAlias = Callable[[Any, RequestContext], Any | Awaitable[Any]]
"""(request, context) -> response message, or an awaitable or `Deferred` of one; None: no answer (acks=0)."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One API as this broker serves it. Each module in `handlers/` exports one as `HANDLER`."""

    key: int
    versions: tuple[int, int]
    """Lowest and highest version served, inclusive: what ApiVersions advertises."""
    handle: Handle
    pipelined: bool = False
    """True: further requests of the connection are taken up while this one waits (produce). False: as Kafka does, the
    connection is muted until the answer is there."""
    advertised: bool = True
    """False: for other brokers, and not told by ApiVersions."""
    shortcuts: Callable[[Services], Mapping[int, Shortcut]] | None = None
    """Made once: shortcuts, by version."""
