"""With flush.policy=os what is acknowledged may not be on the disk: whoever leads after a crash says so."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from headrace.base.errors import StorageFailure
from headrace.broker.partitions.roles import UNFLUSHED
from tests import loops
from tests.broker.clusters import Cluster, running
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient
from tests.broker.replicas import make_topic


async def told_by_the_next_life(cluster: Cluster, *, crash: bool) -> list[tuple[str, int]]:
    """Topic and log end of each such line."""
    if crash:
        cluster.brokers[1]._failure = StorageFailure("planted")
    await cluster.stop(1)
    with capture_logs() as lines:
        await cluster.start(1)
        await cluster.settled(1)
    return [(line["topic"], line["log_end"]) for line in lines if line["event"] == UNFLUSHED]


def test_who_leads_after_a_crash_says_what_may_be_lost(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 1) as cluster:
            await make_topic(cluster, "weak", 1, flush_policy="os")
            await make_topic(cluster, "strong", 1)
            async with RawClient(cluster.bootstrap) as client:
                for topic in ("weak", "strong"):
                    assert (await produce(client, topic, batch(b"a", b"b"))).error_code == 0
            assert await told_by_the_next_life(cluster, crash=True) == [("weak", 2)]
            assert await told_by_the_next_life(cluster, crash=False) == []
            assert await told_by_the_next_life(cluster, crash=False) == []

    loops.run(work())
