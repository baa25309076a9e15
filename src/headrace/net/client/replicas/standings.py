"""The progress of each replica of a partition, as its leader reports it (DescribeQuorum, answered here for any
partition).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.base.ids import PartitionIndex
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.messages import describe_quorum as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One replica. Times are in milliseconds since 1970; -1: unknown."""

    in_sync: bool
    log_end: int
    """Log end offset of the leader; for a follower, the offset that it has flushed. -1 where it has not reported in
    this epoch.
    """
    lag: int | None
    """Number of the leader's records that it lacks; None where that is unknown."""
    last_caught_up_ms: int


async def standings(
    cluster: Cluster, topic: str, partitions: Iterable[PartitionIndex]
) -> Mapping[PartitionIndex, Mapping[int, Standing]]:
    """Every replica of each partition, by broker id. Raises ClientError."""
    return {index: await _standings(cluster, topic, index) for index in partitions}


async def _standings(cluster: Cluster, topic: str, index: PartitionIndex) -> Mapping[int, Standing]:
    partition = wire.RequestPartitionData(partition_index=index)
    request = wire.DescribeQuorumRequest(topics=(wire.RequestTopicData(topic_name=topic, partitions=(partition,)),))

    async def ask() -> Any:
        leader = (await cluster.partition(topic, index)).leader
        connection = await cluster.broker_connection(leader)
        response = await connection.request(ApiKey.DESCRIBE_QUORUM, request, timeout_ms=cluster.request_timeout_ms)
        found = response.topics[0].partitions[0]
        check(found.error_code, f"Partition {index} of topic '{topic}'", found.error_message)
        return found

    found = await cluster.retried(ask, [topic])
    states = [(state, True) for state in found.current_voters] + [(state, False) for state in found.observers]
    end = next(state.log_end_offset for state, _ in states if state.replica_id == found.leader_id)
    return {
        state.replica_id: Standing(
            in_sync=in_sync,
            log_end=state.log_end_offset,
            lag=None if state.log_end_offset < 0 else max(0, end - state.log_end_offset),
            last_caught_up_ms=state.last_caught_up_timestamp,
        )
        for state, in_sync in sorted(states, key=lambda pair: pair[0].replica_id)
    }
