"""Compares a partition's history with its brokers' catalog and log.

Promises to report only contradictions at one moment: a catalog that changes while it is read is read again.
"""

from __future__ import annotations

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import ClusterId, PartitionIndex
from headrace.base.limits import DURABLE_CATALOG_TRIES_MAX
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.net.client.cluster import Cluster
from headrace.net.client.durable import DurableLink
from headrace.net.client.errors import ClientError
from headrace.net.client.members import Members
from headrace.net.client.offsets import LATEST
from headrace.net.client.transactions import Transactions
from headrace.spark.brokers import EARLIEST_LOCAL, Brokers
from headrace.spark.pipelines.audit.unmirrored import Absent, absent_by_brokers
from headrace.spark.read.extent import ReadTopic, Sources
from headrace.storage.tier.mirror import MirroredState, MirroredTopic
from headrace.storage.tier.reader import rebuilt
from headrace.storage.tier.verifying import mirror_problems, seam_problems


def problems_beside(
    sources: Sources, topic: ReadTopic, partition: PartitionIndex, mirrored: PartitionCatalog
) -> tuple[list[str], Absent | None]:
    """Problems of the audited mirror, and whether there should have been one. Raises ClientError, CorruptData,
    HeadraceError.
    """
    brokers = sources.brokers
    assert brokers is not None
    starts = brokers.offsets(topic.name, [partition], EARLIEST_LOCAL)
    catalog = brokers.begin(_catalog(brokers, topic, partition)).result()
    ends = brokers.offsets(topic.name, [partition], LATEST)
    problems = [
        *mirror_problems(topic.name, partition, mirrored, catalog),
        *seam_problems(topic.name, partition, catalog, starts[partition].offset, ends[partition].offset),
        *brokers.begin(_hanging(brokers, topic, partition)).result(),
    ]
    return problems, absent_by_brokers(topic, int(partition), catalog) if mirrored.end_offset < 0 else None


async def _hanging(brokers: Brokers, topic: ReadTopic, partition: PartitionIndex) -> list[str]:
    """The transactions that nobody will end, behind which no reader of committed records gets."""
    async with Cluster(brokers.bootstrap, security=brokers.security) as cluster:
        transactions = Transactions(cluster)
        found = await transactions.open_in([topic.name], partitions=[partition])
        left = await transactions.hanging(found)
    return [
        f"Topic '{topic.name}', partition {partition}: the transaction of producer {each.producer_id} hangs, open from "
        f"offset {each.start_offset} on, and no coordinator will end it: see 'headrace txn find-hanging'."
        for each in left
    ]


async def _catalog(brokers: Brokers, topic: ReadTopic, partition: PartitionIndex) -> PartitionCatalog:
    """The brokers' catalog, with its chain proven."""
    async with Cluster(brokers.bootstrap, security=brokers.security) as cluster:
        alive = [broker for broker in await Members(cluster).brokers() if not broker.fenced]
        if not alive:
            raise ClientError("no broker lives")
        async with DurableLink(alive[0].address, cluster.security) as link:
            for _ in range(DURABLE_CATALOG_TRIES_MAX):
                found = await _whole(link, topic, partition)
                if found is not None:
                    return found
    raise HeadraceError(f"The catalog of {topic.name}-{partition} changes too fast to be read: audit again.")


async def _whole(link: DurableLink, topic: ReadTopic, partition: PartitionIndex) -> PartitionCatalog | None:
    """The catalog at one moment; None where the next requested entry was deleted meanwhile. Raises CorruptData."""
    page = await link.catalog(topic.id, partition, -1)
    if "state" not in page:
        raise CorruptData(f"A broker knows no catalog of {topic.name}-{partition}")
    state = MirroredState.from_json(page["state"])
    entries = [CatalogEntry.from_json(each) for each in page["entries"]]
    while entries and entries[-1].descriptor.start_offset < state.last_start:
        page = await link.catalog(topic.id, partition, entries[-1].descriptor.next_offset)
        if not page["entries"]:
            return None
        entries += [CatalogEntry.from_json(each) for each in page["entries"]]
    kept = [each for each in entries if each.descriptor.start_offset <= state.last_start]
    about = MirroredTopic(cluster_id=ClusterId(""), topic_id=topic.id, name=topic.name, partitions=partition + 1)
    return rebuilt(about, partition, state, [(int(each.descriptor.start_offset), each) for each in kept])
