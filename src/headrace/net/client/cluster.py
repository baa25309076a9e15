"""A cluster as one client sees it: the bootstrap list, open connections, cached metadata, and the leaders.

Promises:

- There is at most one connection per broker and lane.
- A request goes to its intended broker or fails.
- Retries are bounded. A change that a broker may have received is not sent again.

Never returns a closed connection, never keeps metadata that a broker has called stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.base.addresses import Address, parse_bootstrap
from headrace.base.ids import BrokerId, PartitionIndex
from headrace.base.limits import CLIENT_CONNECT_TIMEOUT_MS, CLIENT_PARTITIONS_PER_PAGE, CLIENT_REQUEST_TIMEOUT_MS
from headrace.net.client.connection import Connection, connect
from headrace.net.client.errors import (
    AnswerLostError,
    AuthenticationError,
    ClientError,
    ConnectionLostError,
    GaveUpError,
    NoBrokerError,
    OutcomeUnknownError,
    RefusedError,
    check,
)
from headrace.net.client.retry import Backoff, retried
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.client.view import ClusterView, Listing, PartitionView, TopicView, view_of
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

T = TypeVar("T")

BOOTSTRAP_ROUNDS = 3
"""How often the whole bootstrap list is tried at first contact before NoBrokerError is raised."""


class Cluster:
    """The client's view of one cluster and its connections to it. An async context manager."""

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        *,
        client_id: str = "headrace",
        backoff: Backoff | None = None,
        connect_timeout_ms: int = CLIENT_CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = CLIENT_REQUEST_TIMEOUT_MS,
        security: ClientSecurity = PLAIN,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self.request_timeout_ms = request_timeout_ms
        self.security = security
        """For other connections to the same brokers."""
        self.backoff = backoff or Backoff()
        self._connections: dict[tuple[Address, str], asyncio.Task[Connection]] = {}
        self._view: ClusterView | None = None
        self._topics: dict[str, TopicView] = {}
        self._closing = False
        self._was_connected = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, also where the caller is cancelled meanwhile. Idempotent."""
        self._closing = True
        opening, self._connections = list(self._connections.values()), {}
        for task in opening:
            if not task.done():
                task.cancel()
            elif _is_open(task):
                task.result().begin_close()
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(result, Connection):
                await result.close()

    # connections

    async def any_connection(self) -> Connection:
        """A connection to any broker, in no lane: an open one, or else the first that opens. The known brokers are
        tried first, then the bootstrap brokers. Raises NoBrokerError where none answers, and AuthenticationError from
        the first that does not accept this client: no other is asked with a wrong password.
        """
        for (_, lane), task in self._connections.items():
            if not lane and _is_open(task):  # a lane's connection would wait for the requests in it
                return task.result()
        rounds = 1 if self._was_connected else BOOTSTRAP_ROUNDS
        last: ClientError | None = None
        for round_ in range(1, rounds + 1):
            for address in self._candidates():
                try:
                    return await self._connection(address, "")
                except AuthenticationError:
                    raise
                except ClientError as error:
                    last = error
            if round_ < rounds:
                await asyncio.sleep(self.backoff.pause_s(round_))
        raise NoBrokerError(self._candidates(), last, retriable=self._was_connected) from last

    async def broker_connection(self, broker: BrokerId, lane: str = "") -> Connection:
        """The connection to one broker. Raises ConnectionLostError where the broker is unknown or does not answer.

        Requests of different lanes do not wait for each other: a long-polling fetch has a lane of its own.
        """
        known = self._view.brokers.get(broker) if self._view is not None else None
        if known is None:
            raise ConnectionLostError(f"Broker {broker} is not known.")
        return await self._connection(known.address, lane)

    def _candidates(self) -> list[Address]:
        known = [broker.address for broker in self._view.brokers.values()] if self._view is not None else []
        return list(dict.fromkeys([*known, *self._bootstrap]))

    async def _connection(self, address: Address, lane: str) -> Connection:
        assert not self._closing, "the cluster was closed"
        key = (address, lane)
        task = self._connections.get(key)
        if task is None or (task.done() and not _is_open(task)):
            opening = connect(
                address, client_id=self._client_id, timeout_ms=self._connect_timeout_ms, security=self.security
            )
            task = self._connections[key] = asyncio.ensure_future(opening)
        connection = await asyncio.shield(task)
        self._was_connected = True
        return connection

    # requests

    async def ask_any(self, key: ApiKey, message: Any, *, version: int | None = None) -> Any:
        """One request to any broker, not retried."""
        connection = await self.any_connection()
        return await connection.request(key, message, version=version, timeout_ms=self.request_timeout_ms)

    async def ask_controller(self, key: ApiKey, message: Any) -> Any:
        """One request to the controller where one is known, else to any broker; not retried."""
        view = self._view or await self.metadata(())
        if view.controller in view.brokers:
            connection = await self.broker_connection(view.controller)
        else:
            connection = await self.any_connection()
        return await connection.request(key, message, timeout_ms=self.request_timeout_ms)

    async def retried(self, action: Callable[[], Awaitable[T]], topics: Iterable[str] = ()) -> T:
        """Run `action` until it succeeds, within the limits. Before each further try the metadata of `topics` are
        renewed, or dropped where no broker can provide them.
        """
        names = tuple(topics)

        async def renew(_: ClientError) -> None:
            self.forget(names)
            try:
                await self.metadata(names)
            except ClientError:
                self._view = None

        return await retried(action, self.backoff, before_retry=renew)

    async def changed(
        self, change: Callable[[], Awaitable[T]], *, seen: Callable[[], Awaitable[T | None]], subject: str, look: str
    ) -> T:
        """Run `change`, again only while it was surely not made. Another client may undo it meanwhile, and a repeat
        would make it once more.

        Where its answer is lost, `seen` is called, within the limits, until it shows the change. Raises
        OutcomeUnknownError where it does not; `subject` and `look` are for its sentence.
        """
        try:
            return await self.retried(lambda: _sure(change()))
        except _Unsure as error:
            reason = str(error)

        async def look_once() -> T:
            found = await seen()
            if found is None:
                raise ConnectionLostError(reason)  # it may be under way: retried after a pause
            return found

        try:
            return await self.retried(look_once)
        except GaveUpError as error:
            raise OutcomeUnknownError(subject, reason, look) from error

    # metadata

    async def metadata(self, topics: Iterable[str] | None, *, auto_create: bool = False) -> ClusterView:
        """Fresh metadata of the named topics; None: of all. Topics that do not exist have an error code.

        The result is also cached for `leader`. Raises ClientError where no broker answers.
        """
        if topics is None:
            view = await self._everything()
        else:
            wanted = tuple(MetadataRequestTopic(name=name) for name in topics)
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=auto_create)
            view = view_of(await self.ask_any(ApiKey.METADATA, request))
        self.know(view)
        return view

    def know(self, view: ClusterView) -> None:
        """Go on from what another client of this cluster has heard of it."""
        self._view = view
        self._topics.update(view.topics)

    async def _everything(self) -> ClusterView:
        """Metadata of all topics, page by page where the broker has pages: one answer with very many partitions holds
        both sides for long.
        """
        from headrace.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, RequestCursor

        if ApiKey.DESCRIBE_TOPIC_PARTITIONS not in (connection := await self.any_connection()).versions:
            every = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            return view_of(await self.ask_any(ApiKey.METADATA, every))
        none = MetadataRequest(topics=(), allow_auto_topic_creation=False)
        view = view_of(await connection.request(ApiKey.METADATA, none, timeout_ms=self.request_timeout_ms))
        listing, cursor = Listing(), RequestCursor()
        while True:
            request = DescribeTopicPartitionsRequest(
                response_partition_limit=CLIENT_PARTITIONS_PER_PAGE, cursor=cursor if cursor.topic_name else None
            )
            page = await connection.request(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, timeout_ms=self.request_timeout_ms
            )
            listing.add(page)
            if page.next_cursor is None:
                return replace(view, topics=listing.topics())
            if (before := cursor) >= (cursor := RequestCursor(*page.next_cursor)):
                raise ClientError(f"{connection.address} lists topics in a circle, at {before} and {cursor} again.")

    async def topic(self, name: str, *, fresh: bool = False, auto_create: bool = False) -> TopicView:
        """One topic, from the cache where it is there. Raises RefusedError where it does not exist."""
        cached = None if fresh else self._topics.get(name)
        if cached is None or cached.error_code:
            view = await self.metadata((name,), auto_create=auto_create)
            cached = view.topics.get(name)
        if cached is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}'", "it does not exist")
        check(cached.error_code, f"Topic '{name}'")
        return cached

    def known_topic(self, name: str) -> TopicView | None:
        """The brokers' last information on a topic; None: not requested yet, or dropped since."""
        return self._topics.get(name)

    @property
    def known_brokers(self) -> Collection[BrokerId]:
        """The brokers that were there in the last metadata; none before the first."""
        return () if self._view is None else self._view.brokers

    def is_known(self, broker: BrokerId) -> bool:
        """Whether the broker was there in the last metadata."""
        return broker in self.known_brokers

    async def existing_topic(self, name: str, *, may_be_made: bool = False) -> TopicView:
        """One topic, fresh, for a user who named it. A topic that does not exist is final, and not retried.
        `may_be_made`: the error says how to make it, too.
        """
        try:
            return await self.topic(name, fresh=True)
        except RefusedError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise UnknownTopicError(name, may_be_made=may_be_made) from error

    async def partition(self, topic: str, partition: int) -> PartitionView:
        """A partition with a live leader. Raises RefusedError (retriable) where it has none."""
        return self._led(await self.topic(topic), partition)

    def _led(self, view: TopicView, partition: int) -> PartitionView:
        if not 0 <= partition < len(view.partitions):
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {partition} of topic '{view.name}'")
        found = view.partitions[partition]
        if self._view is None or found.leader not in self._view.brokers:
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, f"Partition {partition} of topic '{view.name}'")
        return found

    async def by_leader(
        self, partitions: Iterable[tuple[str, PartitionIndex]]
    ) -> dict[BrokerId, list[tuple[str, PartitionView]]]:
        """The given partitions, grouped by the broker that leads them. Raises as `partition` does."""
        grouped: dict[BrokerId, list[tuple[str, PartitionView]]] = {}
        views: dict[str, TopicView] = {}
        for topic, index in partitions:
            if (view := views.get(topic)) is None:
                view = views[topic] = await self.topic(topic)
            found = self._led(view, index)
            grouped.setdefault(found.leader, []).append((topic, found))
        return grouped

    def forget(self, topics: Iterable[str]) -> None:
        """Drop the cached metadata of these topics: a broker has called them stale."""
        for name in topics:
            self._topics.pop(name, None)


class UnknownTopicError(RefusedError):
    """A topic that the user named does not exist. No pause will change that."""

    def __init__(self, name: str, *, may_be_made: bool = False) -> None:
        make = f"make it with 'headrace topic create {name}', or " if may_be_made else ""
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist", f"{make}see 'headrace topic list'"
        )
        self.retriable = False


class _Unsure(ClientError):  # noqa: N818 - a state
    """A change may have been made, or may still be made."""


async def _sure(change: Awaitable[T]) -> T:
    """The result of a change. Raises _Unsure where it is unknown."""
    try:
        return await change
    except AnswerLostError as error:
        raise _Unsure(str(error)) from error
    except RefusedError as error:
        if error.code not in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION):
            raise
        raise _Unsure(error.detail or str(error)) from error


def _is_open(task: asyncio.Task[Connection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result().is_open
