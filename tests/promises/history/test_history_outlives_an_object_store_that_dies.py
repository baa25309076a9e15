"""Promises 1, 3 and 6 over an S3-compatible server that is killed and restarted while brokers export to it.

The brokers are killed, too, and sweep the store all the time with no grace. No writer, and no reader of the newest
records, waits for the store. Afterwards all of history is there, once. There are three brokers with three replicas. The
oracle is what librdkafka was told.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.ids import PartitionIndex
from headrace.storage.tier.reader import Store
from tests import loops
from tests.promises.history.test_history_outlives_the_logs import (
    DEADLINE_S,
    TOPIC,
    Reader,
    in_thread,
    leader_of,
    logs_begin_above,
    produce,
    until,
)
from tests.promises.support.load import QUIET
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.s3_server import S3Server

RECORDS: Final = 3_000
MORE: Final = 1_500
SWEPT_ALL_THE_TIME: Final = (
    "log.retention.check.interval.ms=50",
    "durable.sweep.interval.ms=50",
    "durable.sweep.grace.ms=0",
)
"""Nothing but what proves an object to be an orphan keeps it from being removed."""
LIMITS: Final = {
    "segment.bytes": "65536",
    "local.retention.bytes": "0",
    "durable.export.max.lag.ms": "200",
    "min.insync.replicas": "2",
}


def test_all_that_was_acknowledged_is_read_after_store_and_leader_were_killed(tmp_path: Path, own_s3: S3Server) -> None:
    async def work() -> None:
        options = ["--json", "--durable", own_s3.url()]
        for config in SWEPT_ALL_THE_TIME:
            options += ["--config", config]
        async with BrokerCluster(tmp_path, 3, *options) as cluster:
            await cluster.start(*cluster.nodes)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            topic = NewTopic(TOPIC, 1, 3, config=dict(LIMITS))
            await in_thread(functools.partial(admin.create_topics([topic])[TOPIC].result, DEADLINE_S))
            known = await in_thread(functools.partial(produce, cluster.bootstrap, 0, RECORDS))
            await until(functools.partial(logs_begin_above, cluster, RECORDS // 2))
            own_s3.kill()
            known |= await in_thread(functools.partial(produce, cluster.bootstrap, RECORDS, MORE))
            leader = await in_thread(functools.partial(leader_of, cluster.bootstrap))
            await cluster.kill(leader)
            known |= await in_thread(functools.partial(produce, cluster.bootstrap, RECORDS + MORE, MORE))
            newest = Reader(cluster.bootstrap, first=RECORDS)
            await in_thread(functools.partial(newest.read_to, len(known)))
            newest.close()
            assert newest.read == sorted(known.items())[RECORDS:]
            own_s3.start()
            await cluster.start(leader)
            await until(functools.partial(logs_begin_above, cluster, len(known) * 9 // 10))
            reader = Reader(cluster.bootstrap)
            await in_thread(functools.partial(reader.read_to, len(known)))
            reader.close()
            assert reader.read == sorted(known.items())
            said = b"".join(cluster.log(broker).read_bytes() for broker in cluster.nodes)
        secrets = [own_s3.environment[name].encode() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
        assert b"durable export failed" in said
        assert not any(secret in said for secret in secrets)

    loops.run(work())
    store = Store.open(own_s3.url())
    assert store.verify(store.topic(TOPIC), PartitionIndex(0)).end_offset >= (RECORDS + 2 * MORE) * 9 // 10
