"""The input of a handler: the broker's services, and the facts of one request. Handlers keep no state of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.ports import Clock, Random
from headrace.base.values import Value
from headrace.broker.requests.rights import Authority, Rights
from headrace.metadata.image import MetadataImage
from headrace.net.server.connection import Answer, Connection, Later

if TYPE_CHECKING:
    from headrace.broker.cluster.control import Control
    from headrace.broker.cluster.controller_service import ControllerService
    from headrace.broker.cluster.driver import MetadataDriver
    from headrace.broker.durable.history import History
    from headrace.broker.groups.service import GroupService
    from headrace.broker.kit.deferred import Deadlines, Deferred
    from headrace.broker.partitions.intake.forwarding import Forward
    from headrace.broker.partitions.partitions import Partitions
    from headrace.broker.requests.bucket_quotas import BucketQuotas, Mutations
    from headrace.broker.requests.fetch_sessions import FetchSessions
    from headrace.broker.requests.producer_ids import ProducerIdAllocator
    from headrace.broker.requests.quotas import ClientQuotas
    from headrace.broker.requests.read_replicas import ReadReplicas
    from headrace.broker.transactions.building import Transactions
    from headrace.broker.transactions.gate import TransactionGate
    from headrace.broker.transactions.marking import MarkerWriter
    from headrace.broker.transactions.service import TransactionService


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Services(Value):
    """The broker's parts, as handlers see them. Made once, at boot."""

    node_id: BrokerId
    configs: Mapping[str, str]
    """The static broker configs, by Kafka's names, as the user gave them. Secrets are among them."""
    clock: Clock
    random: Random
    metadata: MetadataDriver
    control: Control
    controller: ControllerService
    address_of: Callable[[BrokerId], Address | None]
    """The address at which other brokers reach a broker, where that is known."""
    partitions: Partitions
    forward: Forward
    """May accept a batch of a partition that is handed over."""
    read_replicas: ReadReplicas
    fetch_sessions: FetchSessions
    producer_ids: ProducerIdAllocator
    groups: GroupService
    of_transactions: Transactions
    deadlines: Deadlines
    quotas: ClientQuotas
    answer_bytes_max: Callable[[], int]
    """The bytes that an answer may have now, in the room that slow readers leave."""
    on_error: Callable[[int, int], object]
    """Called for an error in an answer that the dispatcher does not see, with the API key and the error code."""
    history: History | None
    """Durable history, where there is a store."""
    bucket_quotas: BucketQuotas
    authority: Authority
    """Knows what clients may do."""
    api_versions: Mapping[int, tuple[int, int]]
    """The advertised APIs: API key to its lowest and highest version."""

    @property
    def transactions(self) -> TransactionService:
        return self.of_transactions.service

    @property
    def gate(self) -> TransactionGate:
        """Knows whether batches of transactions may be appended."""
        return self.of_transactions.gate

    @property
    def markers(self) -> MarkerWriter:
        return self.of_transactions.writer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RequestContext(Value):
    """The facts of one request. `image` is read once, so that the whole request is answered from one state."""

    services: Services
    image: MetadataImage
    version: int
    client_id: str
    client_host: str
    listener: str
    """The name of the listener that the client came by. It is told the brokers' addresses there."""
    received_bytes: int
    rights: Rights
    principal: str
    """The client, as `User:name`."""
    is_long: bool = False
    """Whether the request names so much that it is handled in several turns of the event loop. Its connection is not
    served meanwhile, whatever the API."""

    def mutations(self, *, strict_from: int) -> Mutations:
        """Return what the client may have the controller change. From this version on, the rest is refused."""
        is_strict = self.version >= strict_from
        return self.services.bucket_quotas.mutations(self.principal, self.client_id, is_strict=is_strict)


Shortcut: TypeAlias = Callable[[memoryview, Connection], "Answer | Later | Deferred | None"]
"""Serves the usual form of a request from its frame, without the length. None: nothing was done, and the handler serves
it. The result of a `Deferred` is an `Answer`."""


class Admitted(NamedTuple):
    """The request, as far as it is handled."""

    request: Any
    finish: Callable[[Any], Any] | None = None
    """Adds to the response what was refused. The response may be None: no answer is wanted."""
    context: RequestContext | None = None
    """By whose image it was checked, and is handled; None: that of the request."""


class Refused(NamedTuple):
    """The answer to a request of which nothing is handled."""

    response: Any


Slices: TypeAlias = Generator[Awaitable[object] | None, None, Admitted | Refused]
"""The check of a request that names very much. It yields when others should have their turn of the event loop, or what
it waits for."""
Checked: TypeAlias = Admitted | Refused | Slices
Access: TypeAlias = Callable[[Any, RequestContext], Checked]
"""Checks the rights of a request (`requests.access`)."""
Handle: TypeAlias = Callable[[Any, RequestContext], Any | Awaitable[Any]]
"""(request, context) -> response message, or an awaitable or `Deferred` of one; None: no answer (acks=0)."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Handler(Value):
    """One API as this broker serves it. Each module in `handlers/` exports one as `HANDLER`."""

    key: int
    versions: tuple[int, int]
    """Lowest and highest version served, inclusive: ApiVersions advertises these."""
    handle: Handle
    access: Access
    """The rights that a request needs (`requests.access`). It is asked where clients' rights are bounded."""
    pipelined: bool = False
    """True: further requests of the connection are served while this one waits (produce). False: as in Kafka, the
    connection is muted until the answer is there."""
    advertised: bool = True
    """False: for other brokers, and not listed by ApiVersions."""
    shortcuts: Callable[[Services], Mapping[int, Shortcut]] | None = None
    """Makes the shortcuts, by version. Called once."""

    is_loaded: ClassVar = True

    def loaded(self) -> Handler:
        """It is an `Offer` of itself."""
        return self


class Offer(Protocol):
    """An API that a broker serves. Its handler may be loaded only when the API is first requested."""

    @property
    def key(self) -> int: ...
    @property
    def versions(self) -> tuple[int, int]: ...
    @property
    def advertised(self) -> bool: ...
    @property
    def is_loaded(self) -> bool: ...
    def loaded(self) -> Handler: ...
