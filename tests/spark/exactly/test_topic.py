"""The ledger's topic on two brokers: a decision is on both before it counts, or the write is refused."""

from __future__ import annotations

import pytest

from headrace.base.errors import UsageError
from headrace.cli import topic as headrace_topic
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.spark.brokers import Brokers
from headrace.spark.write.exactly.topic import LEDGER, MIN_INSYNC, check_ledger
from headrace.testing import ClusterThread

pytestmark = pytest.mark.timeout(180)
CARELESS = {"default.replication.factor": "1", "min.insync.replicas": "1"}


async def copies(cluster: Cluster) -> tuple[int, str]:
    view = await cluster.topic(LEDGER, fresh=True)
    asked = await Admin(cluster).one_config_of_topics((LEDGER,), MIN_INSYNC)
    return min(len(each.replicas) for each in view.partitions), asked[LEDGER]


async def one_copy(cluster: Cluster) -> None:
    await Admin(cluster).delete_topic(LEDGER)
    await Admin(cluster).create_topic(LEDGER, partitions=2, replication_factor=1)


def test_a_decision_is_on_two_copies_or_the_write_is_refused() -> None:
    with ClusterThread(2, configs=CARELESS) as made, Brokers(made.bootstrap) as brokers:
        brokers.ask(check_ledger)
        assert brokers.ask(copies) == (2, "2"), "whatever topics get by default"
        headrace_topic.alter(LEDGER, config=[f"{MIN_INSYNC}=1"], bootstrap=made.bootstrap)
        with pytest.raises(UsageError, match=rf"'headrace topic alter {LEDGER} --config {MIN_INSYNC}=2'"):
            brokers.ask(check_ledger)
        headrace_topic.alter(LEDGER, config=[f"{MIN_INSYNC}=2"], bootstrap=made.bootstrap)
        brokers.ask(check_ledger)
        brokers.ask(one_copy)
        with pytest.raises(UsageError, match=f"'headrace topic reassign {LEDGER} --replication-factor 2'"):
            brokers.ask(check_ledger)
