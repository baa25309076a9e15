"""Transactions that a producer prepares and another process ends (KIP-939): begun, looked at, and ended by name.

Promises:

- A transaction that `begin` has begun never times out. Only `end`, `settle` or a new `begin` of its id ends it.
- `end` may be repeated: the coordinator knows an end that it has carried out (KIP-890).
- `settle` returns once all markers are written, so that readers of committed records see the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.base.limits import CLIENT_TRANSACTIONS_AT_ONCE_MAX
from headrace.coordinators.partitioning import partition_for
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import Connection
from headrace.net.client.errors import ClientError, RefusedError, UnsupportedError, check
from headrace.net.client.groups import FIND_VERSION
from headrace.net.client.transactions import FENCING_TIMEOUT_MS, STATE_TOPIC, TRANSACTION_KEY, Transactions
from headrace.net.client.view import ClusterView
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

TWO_PHASE_VERSION: Final = 6
"""Of InitProducerId."""
ENABLE: Final = "transaction.two.phase.commit.enable"
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a transaction that only somebody's request ends, as its coordinator tells it."""
PROBE: Final = "headrace-two-phase-probe"
"""The transactional id by which `check_two_phase` asks; it never has a transaction."""
LOOK_MS: Final = 5
LOOK_MS_MAX: Final = 500


class Prepared(NamedTuple):
    """A transaction of one producer: begun, or fully written and to be ended by somebody else."""

    name: str
    """The transactional id."""
    producer_id: int
    epoch: int


class Standing(NamedTuple):
    """How a coordinator has a transactional id."""

    state: str
    """Kafka's name."""
    producer_id: int
    epoch: int

    @property
    def is_open(self) -> bool:
        return self.state == "Ongoing"

    @property
    def is_committed(self) -> bool:
        """Whether its last transaction is committed, or is decided to be."""
        return self.state in ("PrepareCommit", "CompleteCommit")

    @property
    def is_aborted(self) -> bool:
        """Whether its last transaction is aborted, or is decided to be."""
        return self.state in ("PrepareAbort", "PrepareEpochFence", "CompleteAbort")

    @property
    def is_being_ended(self) -> bool:
        return self.state in ("PrepareCommit", "PrepareAbort")


class Fate(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Fates(NamedTuple):
    """The transactions, of those that were to be committed, that are not, or may not be."""

    aborted: tuple[str, ...]
    """The ids of those that somebody else has aborted."""
    unknown: tuple[str, ...]
    """The ids of those that have ended, and whose coordinator cannot tell how."""


class TwoPhase:
    """Requests to the coordinators of one cluster. Remembers who coordinates the ids that it was asked for.

    Where the client knows the leaders of the topic of transactions (`know_coordinators`), it looks nobody up: an id's
    partition leads to its coordinator. After a refusal it forgets them, and asks who coordinates an id.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._transactions = Transactions(cluster)
        self._known: dict[str, BrokerId] = {}
        """Coordinators by id. A request takes one away and puts it back with its answer: a retry looks it up."""
        self._turns = asyncio.Semaphore(CLIENT_TRANSACTIONS_AT_ONCE_MAX)

    async def know_coordinators(self, *topics: str) -> ClusterView:
        """Learn the leaders of the topic of transactions, and of these topics. Raises ClientError."""
        return await self._cluster.retried(lambda: self._cluster.metadata((*topics, STATE_TOPIC)))

    async def check_two_phase(self, wish: str) -> None:
        """Raise UsageError where the brokers do not offer two-phase commit; `wish` is what needs it."""
        try:
            await self._init(PROBE, two_phase=True, keep_prepared=True)
        except UnsupportedError as error:
            raise UsageError(
                f"{wish} needs brokers with two-phase commit (KIP-939), as Headrace's are, and these have none: leave "
                "it out, and rows are written at least once."
            ) from error
        except RefusedError as error:
            if error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise UsageError(
                    f"{wish} needs two-phase commit, which these brokers have off: set {ENABLE}=true on each."
                ) from error
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise UsageError(
                    f"{wish} needs two-phase commit with kept transactions (KIP-939), and these brokers do not offer "
                    "it: use Headrace's, at transaction.version=2."
                ) from error
            raise

    async def begin(self, name: str, *, timeout_ms: int | None = None) -> Prepared:
        """Become the producer of this id. An open transaction of it is aborted, and its producer is fenced.

        `timeout_ms` None: what it writes stays open until it is ended (two-phase commit). Raises ClientError.
        """
        answer = await self._init(name, timeout_ms=timeout_ms, two_phase=timeout_ms is None)
        return Prepared(name, answer.producer_id, answer.producer_epoch)

    async def keep(self, name: str) -> Prepared:
        """Take over the open transaction of this id, to end it: its producer is fenced. Raises ClientError."""
        answer = await self._init(name, two_phase=True, keep_prepared=True)
        return Prepared(name, answer.producer_id, answer.producer_epoch)

    async def _init(
        self, name: str, *, timeout_ms: int | None = None, two_phase: bool = False, keep_prepared: bool = False
    ) -> Any:
        from headrace.wire.messages.init_producer_id import InitProducerIdRequest

        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms or FENCING_TIMEOUT_MS,
            enable2_pc=two_phase,
            keep_prepared_txn=keep_prepared,
        )

        async def ask() -> Any:
            connection, broker = await self._coordinator(name)
            if two_phase and connection.version(ApiKey.INIT_PRODUCER_ID) < TWO_PHASE_VERSION:
                raise UnsupportedError(f"The broker at {connection.address} offers no two-phase commit.")
            answer = await self._request(connection, ApiKey.INIT_PRODUCER_ID, request)
            self._check(answer.error_code, name)
            self._known[name] = broker
            return answer

        async with self._turns:
            return await self._cluster.retried(ask)

    async def end(self, prepared: Prepared, *, commit: bool) -> None:
        """Decide a transaction. Returns once that is durable. Raises RefusedError where its producer is another one
        now, or the transaction was ended otherwise; ClientError.
        """
        from headrace.wire.messages.end_txn import EndTxnRequest

        request = EndTxnRequest(prepared.name, prepared.producer_id, prepared.epoch, commit)

        async def ask() -> None:
            connection, broker = await self._coordinator(prepared.name)
            answer = await self._request(connection, ApiKey.END_TXN, request)
            self._check(answer.error_code, prepared.name)
            self._known[prepared.name] = broker

        async with self._turns:
            await self._cluster.retried(ask)

    async def describe(self, names: Iterable[str]) -> dict[str, Standing]:
        """How these ids stand, by name. Unknown ids are left out. Raises ClientError."""
        wanted = tuple(dict.fromkeys(names))

        async def ask() -> dict[str, Standing]:
            if not wanted:
                return {}
            await self._look_up(wanted)
            coordinators = {name: self._known.pop(name) for name in wanted}
            by_broker: dict[BrokerId, list[str]] = {}
            for name, broker in coordinators.items():
                by_broker.setdefault(broker, []).append(name)
            found: dict[str, Standing] = {}
            for answer in await asyncio.gather(*(self._described(*each) for each in by_broker.items())):
                found |= answer
            self._known |= coordinators
            return found

        return await self._cluster.retried(ask)

    async def _described(self, broker: BrokerId, names: list[str]) -> dict[str, Standing]:
        from headrace.wire.messages.describe_transactions import DescribeTransactionsRequest

        connection = await self._cluster.broker_connection(broker)
        request = DescribeTransactionsRequest(transactional_ids=tuple(names))
        answer = await self._request(connection, ApiKey.DESCRIBE_TRANSACTIONS, request)
        found = {}
        for each in answer.transaction_states:
            if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            self._check(each.error_code, each.transactional_id)
            found[each.transactional_id] = Standing(each.transaction_state, each.producer_id, each.producer_epoch)
        return found

    async def _coordinator(self, name: str) -> tuple[Connection, BrokerId]:
        """The coordinator of an id, which is forgotten until the caller puts it back. Raises ClientError."""
        broker = self._known.pop(name, None)
        if broker is None:
            broker = self._leader_for(name)
        if broker is None:
            return await self._transactions.coordinator(name)
        try:
            return await self._cluster.broker_connection(broker), broker
        except ClientError:
            self._cluster.forget((STATE_TOPIC,))
            raise

    def _leader_for(self, name: str) -> BrokerId | None:
        """The leader of the id's partition, as far as it is known."""
        view = self._cluster.known_topic(STATE_TOPIC)
        if view is None or not view.partitions:
            return None
        leader = view.partitions[partition_for(name, len(view.partitions))].leader
        return leader if self._cluster.is_known(leader) else None

    def _check(self, code: int, name: str) -> None:
        """Raises RefusedError, after which coordinators are looked up: another broker may be the one."""
        try:
            check(code, f"Transactional id '{name}'")
        except RefusedError:
            self._cluster.forget((STATE_TOPIC,))
            raise

    async def _look_up(self, names: Iterable[str]) -> None:
        """Know the coordinators of these ids, by one request for all that are not known. Raises ClientError."""
        from headrace.wire.messages.find_coordinator import FindCoordinatorRequest

        wanted = []
        for name in names:
            if name in self._known:
                continue
            if (leader := self._leader_for(name)) is not None:
                self._known[name] = leader
            else:
                wanted.append(name)
        if not wanted:
            return
        request = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=tuple(wanted))
        answer = await self._cluster.ask_any(ApiKey.FIND_COORDINATOR, request, version=FIND_VERSION)
        found: dict[str, BrokerId] = {}
        for each in answer.coordinators:
            check(each.error_code, f"Transactional id '{each.key}'", each.error_message)
            found[each.key] = BrokerId(each.node_id)
        if not all(map(self._cluster.is_known, found.values())):
            await self._cluster.metadata(())
        if missing := {broker for broker in found.values() if not self._cluster.is_known(broker)}:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Broker {min(missing)}")
        self._known |= found

    async def commit_all(self, transactions: Collection[Prepared]) -> Fates:
        """Commit these. One may be committed already. Raises ClientError, also where somebody else is ending one."""
        await self._cluster.retried(lambda: self._look_up(each.name for each in transactions))
        fates = await asyncio.gather(*(self._commit(each) for each in transactions))
        named = [(each.name, fate) for each, fate in zip(transactions, fates, strict=True)]
        return Fates(
            tuple(name for name, fate in named if fate is Fate.ABORTED),
            tuple(name for name, fate in named if fate is Fate.UNKNOWN),
        )

    async def _commit(self, prepared: Prepared) -> Fate:
        """A coordinator forgets ids `transactional.id.expiration.ms` after their last transaction has ended. It also
        forgets how that ended when the id gets another producer."""
        try:
            await self.end(prepared, commit=True)
        except RefusedError as error:
            standing = None if error.retriable else (await self.describe([prepared.name])).get(prepared.name)
            if error.retriable or (standing is not None and standing.is_open):
                raise
            if standing is None or not (standing.is_committed or standing.is_aborted):
                return Fate.UNKNOWN
            return Fate.COMMITTED if standing.is_committed else Fate.ABORTED
        return Fate.COMMITTED

    async def abort_all(self, names: Collection[str]) -> None:
        """Abort the open transactions of these ids, and fence their producers. Raises ClientError."""
        await asyncio.gather(*(self._init(name) for name in names))

    async def settle(self, names: Collection[str]) -> None:
        """Wait until all decided transactions of these ids are marked in all their partitions. Raises ClientError."""
        pause_ms = LOOK_MS
        while any(each.is_being_ended for each in (await self.describe(names)).values()):
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, LOOK_MS_MAX)

    async def _request(self, connection: Connection, key: ApiKey, message: object) -> Any:
        try:
            return await connection.request(key, message, timeout_ms=self._cluster.request_timeout_ms)
        except ClientError:
            self._cluster.forget((STATE_TOPIC,))
            raise
