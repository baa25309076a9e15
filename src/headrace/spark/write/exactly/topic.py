"""The topic of the ledger: made where it is missing, and refused where one lost disk could take decisions along."""

from __future__ import annotations

from typing import Final

from headrace.base.errors import UsageError
from headrace.net.client.admin import Admin, CreatedTopic
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import RefusedError
from headrace.net.client.two_phase import TwoPhase
from headrace.net.client.view import TopicView
from headrace.wire.errors import ErrorCode

LEDGER: Final = "headrace-spark-ledger"
"""The topic."""
PARTITIONS: Final = 8
COPIES: Final = 3
"""Replicas of a decision; fewer while fewer brokers are live."""
COPIES_ACKNOWLEDGED: Final = 2
"""Replicas that a decision is on before it counts; fewer where there are fewer."""
MIN_INSYNC: Final = "min.insync.replicas"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "durable.enable": "false",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(4 * 1024 * 1024),
}
DEFAULT: Final = -1


async def ledger_topic(cluster: Cluster) -> TopicView:
    """The topic of decisions, which is made where it is missing. Raises ClientError."""
    view = (await TwoPhase(cluster).know_coordinators(LEDGER)).topics.get(LEDGER)
    if view is not None and not view.error_code:
        return view
    if view is None or view.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        try:
            await _make(cluster)
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    return await cluster.retried(lambda: cluster.topic(LEDGER, fresh=True))


async def check_ledger(cluster: Cluster) -> None:
    """Make the topic where it is missing. Raises UsageError where it is there, and a decision may be on one copy though
    there are brokers for more; ClientError. It asks brokers for the topic only where the client does not know it.
    """
    view = cluster.known_topic(LEDGER)
    if view is None or view.error_code:
        view = await ledger_topic(cluster)
    replicas = min(len(each.replicas) for each in view.partitions)
    if replicas < COPIES_ACKNOWLEDGED:
        brokers = len(cluster.known_brokers)
        if brokers < COPIES_ACKNOWLEDGED or await _shares_logs(cluster):
            return
        raise UsageError(
            f"Topic '{LEDGER}' has one copy of each decision, and there are {brokers} brokers: 'headrace topic "
            f"reassign {LEDGER} --replication-factor {min(COPIES, brokers)}' adds copies."
        )
    enough = int((await Admin(cluster).one_config_of_topics((LEDGER,), MIN_INSYNC))[LEDGER])
    if enough < COPIES_ACKNOWLEDGED:
        raise UsageError(
            f"Topic '{LEDGER}' has {MIN_INSYNC}={enough}, so that a decision may be on one copy and be lost with it: "
            f"'headrace topic alter {LEDGER} --config {MIN_INSYNC}={COPIES_ACKNOWLEDGED}' mends that."
        )


async def _make(cluster: Cluster) -> None:
    """With as many copies as the brokers' default has, or COPIES if that is more. Raises ClientError."""
    made, wished = await _create(cluster, DEFAULT, {}, validate_only=True), DEFAULT
    copies = min(COPIES, len(cluster.known_brokers))
    if made.replication_factor < copies:
        made, wished = await _create(cluster, copies, {}, validate_only=True), copies
    # Without a value of its own it is 2 from 3 replicas on, also where these are added later.
    safe = {MIN_INSYNC: str(COPIES_ACKNOWLEDGED)} if made.replication_factor >= COPIES_ACKNOWLEDGED else {}
    await _create(cluster, wished, safe, validate_only=False)


async def _create(cluster: Cluster, copies: int, more: dict[str, str], *, validate_only: bool) -> CreatedTopic:
    return await Admin(cluster).create_topic(
        LEDGER,
        partitions=PARTITIONS,
        replication_factor=copies,
        configs={**CONFIGS, **more},
        validate_only=validate_only,
    )


async def _shares_logs(cluster: Cluster) -> bool:
    """Whether all brokers share each log. There is one replica of it then, and the store behind it has copies."""
    probe = await Admin(cluster).create_topic(
        f"{LEDGER}-copies", partitions=1, replication_factor=COPIES_ACKNOWLEDGED, validate_only=True
    )
    return probe.replication_factor < COPIES_ACKNOWLEDGED
