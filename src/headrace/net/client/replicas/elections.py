"""Elections over the wire (KIP-460): the first replica leads partitions again, or any live replica does.

Promises: the result for each partition is returned. A repeated request does no harm: where the leader is as wished, the
second answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import check
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages import elect_leaders as wire

ELECTION_TIMEOUT_MS = 20_000
PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """The result for one partition. `error` is NONE where it has another leader now, and ELECTION_NOT_NEEDED where the
    present one is right. `detail` is the broker's own sentence.
    """

    partition: int
    error: ErrorCode
    detail: str | None


async def elect_leaders(
    cluster: Cluster, topic: str, partitions: Sequence[int], *, unclean: bool = False
) -> tuple[Elected, ...]:
    """Hold elections for these partitions of a topic, by number. Raises RefusedError where none was held."""
    named = wire.TopicPartitions(topic=topic, partitions=tuple(partitions))
    request = wire.ElectLeadersRequest(
        election_type=UNCLEAN if unclean else PREFERRED, topic_partitions=(named,), timeout_ms=ELECTION_TIMEOUT_MS
    )

    async def ask() -> tuple[Elected, ...]:
        response = await cluster.ask_controller(ApiKey.ELECT_LEADERS, request)
        results = [result for found in response.replica_election_results for result in found.partition_result]
        check(response.error_code, f"Topic '{topic}'", next((result.error_message for result in results), None))
        return tuple(
            Elected(partition=result.partition_id, error=error_of(result.error_code), detail=result.error_message)
            for result in results
        )

    elected = await cluster.retried(ask)
    cluster.forget((topic,))
    return elected
