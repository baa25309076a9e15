"""`headrace topic describe`: how far each replica is, asked from the leader of each partition."""

from __future__ import annotations

from pathlib import Path

from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.replicas.standings import standings
from tests import loops
from tests.broker.clusters import running
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient
from tests.broker.replicas import follower, held_rounds, known, leader, make_topic, until


def test_each_replicas_lag_is_told_by_its_leader(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            key = await make_topic(cluster, "t", 3)
            partition = known(await cluster.agree(), key)
            first, slow = partition.leader, partition.replicas[2]
            await until(lambda: leader(cluster, first, key).isr.leader.in_sync == 3)
            async with RawClient(str(cluster.address(first))) as writer, Client(cluster.bootstrap) as client:
                assert (await produce(writer, "t", batch(b"a", b"b"))).error_code == 0
                told = (await standings(client, "t", [key.partition]))[key.partition]
                assert {(each, one.in_sync, one.log_end, one.lag) for each, one in told.items()} == {
                    (broker, True, 2, 0) for broker in (1, 2, 3)
                }
                with held_rounds(cluster, slow):
                    assert (await produce(writer, "t", batch(b"c"), acks=1)).error_code == 0
                    await until(lambda: follower(cluster, slow, key).log.log_end_offset == 3)
                    others = [each for each in partition.replicas if each != slow]
                    await until(
                        lambda: all(leader(cluster, first, key).isr.leader.isr_ends[each] == 3 for each in others)
                    )
                    told = (await standings(client, "t", [key.partition]))[key.partition]
                    assert {each: one.lag for each, one in told.items()} == dict.fromkeys(others, 0) | {slow: 1}

    loops.run(work())
