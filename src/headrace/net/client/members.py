"""The members of a cluster, over the wire: its brokers and its quorum. Values in and out.

Promises: a refusal is a RefusedError that names its subject and gives the broker's own words. A change whose answer was
lost is not sent again. Instead the cluster is inspected, and OutcomeUnknownError raised where no effect of the change
is visible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId
from headrace.base.limits import BROKER_CONNECT_S
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import connect
from headrace.net.client.errors import AuthenticationError, ClientError, check
from headrace.net.client.view import ClusterView
from headrace.wire.ailments import Levels
from headrace.wire.apis import ApiKey

METADATA_TOPIC = "__cluster_metadata"
CHANGE_TIMEOUT_MS = 20_000
QUORUM = "headrace quorum"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A registered broker."""

    id: int
    host: str
    port: int
    rack: str | None
    fenced: bool
    controller: bool

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member of the quorum. Times are in milliseconds since 1970; -1: unknown."""

    id: int
    directory_id: UUID
    voter: bool
    log_end: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    leader: int
    epoch: int
    high_watermark: int
    members: tuple[MemberView, ...]
    outlook: str = ""
    """Outlook for the learners while voters are missing; empty: none are missing, or the broker does not report it."""


class Members:
    """The requests about the members of one cluster. Keeps no state of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def brokers(self) -> tuple[BrokerView, ...]:
        """All registered brokers, by id, including fenced ones."""
        from headrace.wire.messages import describe_cluster as wire

        async def ask() -> Any:
            response = await self._cluster.ask_any(
                ApiKey.DESCRIBE_CLUSTER, wire.DescribeClusterRequest(include_fenced_brokers=True)
            )
            check(response.error_code, "The cluster", response.error_message)
            return response

        response = await self._cluster.retried(ask)
        found = (
            BrokerView(
                id=broker.broker_id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                fenced=broker.is_fenced,
                controller=broker.broker_id == response.controller_id,
            )
            for broker in response.brokers
        )
        return tuple(sorted(found, key=lambda broker: broker.id))

    async def broker(self, broker_id: int) -> BrokerView:
        """One broker. Raises ClientError where none has this id."""
        for broker in await self.brokers():
            if broker.id == broker_id:
                return broker
        raise ClientError(f"Broker {broker_id} is not registered; 'headrace broker list' shows those that are.")

    async def answers(self, broker: BrokerView) -> bool:
        """Whether the broker answers at its address within BROKER_CONNECT_S. A process that dies may still take
        connections, and one that was stopped does; neither answers."""
        security = self._cluster.security
        try:
            connection = await connect(broker.address, timeout_ms=BROKER_CONNECT_S * 1000, security=security)
        except AuthenticationError:
            return True
        except ClientError:
            return False
        await connection.close()
        return True

    async def metadata(self) -> ClusterView:
        """All topics, as any broker sees them."""

        async def ask() -> ClusterView:
            return await self._cluster.metadata(None)

        return await self._cluster.retried(ask)

    async def quorum(self) -> QuorumView:
        """The members of the metadata quorum, voters first."""
        from headrace.wire.messages import describe_quorum as wire

        partition = wire.RequestPartitionData(partition_index=0)
        topic = wire.RequestTopicData(topic_name=METADATA_TOPIC, partitions=(partition,))

        async def ask() -> Any:
            response = await self._cluster.ask_any(ApiKey.DESCRIBE_QUORUM, wire.DescribeQuorumRequest(topics=(topic,)))
            check(response.error_code, "The quorum", response.error_message)
            found = response.topics[0].partitions[0]
            check(found.error_code, "The quorum", found.error_message)
            return found

        found = await self._cluster.retried(ask)
        return QuorumView(
            leader=found.leader_id,
            epoch=found.leader_epoch,
            high_watermark=found.high_watermark,
            members=(
                *(_member(state, voter=True) for state in found.current_voters),
                *(_member(state, voter=False) for state in found.observers),
            ),
            outlook=found.error_message or "",
        )

    async def levels(self) -> Levels:
        """The feature level of the cluster, and the levels that each broker knows, as any live broker tells them.
        Raises ClientError."""
        from headrace.net.client.ailments import report_of

        for broker in await self.brokers():
            report = None if broker.fenced else await report_of(broker.address, self._cluster.security)
            if report is not None and report.levels is not None:
                return report.levels
        raise ClientError(
            "No broker tells the feature level: that needs a release that knows levels, and the right Describe on the "
            "cluster."
        )

    async def finalize_level(self, level: int, *, asked: int, validate_only: bool = False) -> None:
        """Raise the cluster's feature level. `asked`: a broker that knows levels. Raises RefusedError."""
        from headrace.metadata.features import HEADRACE, UPDATE_FAILED
        from headrace.wire.messages import update_features as wire

        subject = f"Feature level {level}"
        update = wire.FeatureUpdateKey(feature=HEADRACE, max_version_level=level)
        request = wire.UpdateFeaturesRequest(
            feature_updates=(update,), timeout_ms=CHANGE_TIMEOUT_MS, validate_only=validate_only
        )

        async def ask() -> bool:
            connection = await self._cluster.broker_connection(BrokerId(asked))
            response = await connection.request(
                ApiKey.UPDATE_FEATURES, request, timeout_ms=self._cluster.request_timeout_ms
            )
            check(response.error_code, subject, (response.error_message or "").removeprefix(UPDATE_FAILED) or None)
            return True

        async def seen() -> bool | None:
            return validate_only or (await self.levels()).level >= level or None

        await self._cluster.metadata(())
        await self._cluster.changed(ask, seen=seen, subject=subject, look="headrace upgrade --dry-run")

    async def remove(self, broker_id: int) -> None:
        """Remove a stopped broker for good. Raises RefusedError."""
        from headrace.wire.messages.unregister_broker import UnregisterBrokerRequest

        async def gone() -> bool:
            return all(broker.id != broker_id for broker in await self.brokers())

        request = UnregisterBrokerRequest(broker_id=broker_id)
        await self._change(ApiKey.UNREGISTER_BROKER, request, broker_id, gone, "headrace broker list")

    async def promote(self, broker_id: int) -> None:
        """Make a member a voter. Raises RefusedError."""
        from headrace.wire.messages.add_raft_voter import AddRaftVoterRequest

        request = AddRaftVoterRequest(cluster_id=None, timeout_ms=CHANGE_TIMEOUT_MS, voter_id=broker_id)
        await self._change(ApiKey.ADD_RAFT_VOTER, request, broker_id, partial(self._votes, broker_id), QUORUM)

    async def demote(self, broker_id: int) -> None:
        """Make a voter a learner. Raises RefusedError."""
        from headrace.wire.messages.remove_raft_voter import RemoveRaftVoterRequest

        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=broker_id)

        async def learns() -> bool:
            return not await self._votes(broker_id)

        await self._change(ApiKey.REMOVE_RAFT_VOTER, request, broker_id, learns, QUORUM)

    async def _votes(self, broker_id: int) -> bool:
        return any(member.voter for member in (await self.quorum()).members if member.id == broker_id)

    async def _change(
        self, key: ApiKey, request: Any, broker_id: int, made: Callable[[], Awaitable[bool]], look: str
    ) -> None:
        async def ask() -> bool:
            response = await self._cluster.ask_any(key, request)
            check(response.error_code, f"Broker {broker_id}", response.error_message)
            return True

        async def seen() -> bool | None:
            return await made() or None

        await self._cluster.changed(ask, seen=seen, subject=f"Broker {broker_id}", look=look)


def _member(state: Any, *, voter: bool) -> MemberView:
    return MemberView(
        id=state.replica_id,
        directory_id=state.replica_directory_id,
        voter=voter,
        log_end=state.log_end_offset,
        last_fetch_ms=state.last_fetch_timestamp,
        last_caught_up_ms=state.last_caught_up_timestamp,
    )
