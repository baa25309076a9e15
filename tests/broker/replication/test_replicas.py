"""Leaders and their followers, in running brokers: what is copied, counted, cut and shown when roles change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerId, Offset
from headrace.base.limits import REPLICA_BULK_BYTES_MIN
from headrace.base.ports import Buffer
from headrace.storage.log.partition import LocalLog
from headrace.wire.batches import decode_records, encode_batch, iterate_headers
from headrace.wire.records import Record
from tests import loops
from tests.broker.clusters import running
from tests.broker.data_path import batch, delete_records, fetch, produce
from tests.broker.group_broker import RawClient
from tests.broker.local_logs import local
from tests.broker.replicas import DEADLINE_S, elect, follower, held_rounds, known, leader, make_topic, set_isr, until


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


def test_what_a_follower_had_not_flushed_when_it_was_elected_is_flushed_by_the_leader(tmp_path: Path) -> None:
    """Nobody else would: the high watermark would stay below the start of its epoch until somebody writes again."""

    async def work() -> None:
        async with running(tmp_path, 2) as cluster:
            key = await make_topic(cluster, "t", 2)
            first = known(await cluster.agree(), key).leader
            other = 3 - first
            async with RawClient(str(cluster.address(first))) as client:
                await until(lambda: leader(cluster, first, key).isr.leader.in_sync == 2)
                assert (await produce(client, "t", batch(b"a"))).error_code == 0
                copy = follower(cluster, other, key)
                with held_rounds(cluster, other):
                    large = batch(bytes(REPLICA_BULK_BYTES_MIN))  # after it more is asked for before it is flushed
                    for end in (2, 3):  # the second comes while the round of the first is under way
                        assert (await produce(client, "t", large, acks=1)).error_code == 0
                        await until(lambda end=end: copy.log.log_end_offset == end)  # type: ignore[misc]
                    await elect(cluster, key, other)
                    await cluster.until(other, lambda image: known(image, key).leader == other)
                await cluster.settled(other)
                await until(lambda: leader(cluster, other, key).high_watermark == 3)
                await until(lambda: follower(cluster, first, key).high_watermark == 3)

    run(work())


def test_a_copy_begins_where_a_batch_does_whose_first_records_are_deleted(tmp_path: Path) -> None:
    """The leader's log starts in the middle of a batch; no follower's can."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            key = await make_topic(cluster, "t", 2)
            partition = known(await cluster.agree(), key)
            first = partition.leader
            (other,) = set(partition.replicas) - {first}
            await cluster.stop(other)
            await cluster.until(first, lambda image: known(image, key).isr == (first,))
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"a", b"b", b"c"))).error_code == 0
                assert (await produce(client, "t", batch(b"d"))).error_code == 0
                (deleted,) = await delete_records(client, "t", [1])
                assert (deleted.error_code, deleted.low_watermark) == (0, 1)
            await cluster.start(other)
            await cluster.until(first, lambda image: set(known(image, key).isr) == {first, other})
            copy = follower(cluster, other, key)
            await until(lambda: (copy.log.log_start_offset, copy.log.flushed_end) == (1, 4))
            await elect(cluster, key, other)
            await cluster.until(other, lambda image: known(image, key).leader == other)
            await cluster.settled(other)
            async with RawClient(str(cluster.address(other))) as client:
                answer = await fetch(client, "t", 1)
                assert [value for _, value in values(answer.records)][:3] == [b"a", b"b", b"c"]

    run(work())


def values(records: Buffer) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record."""
    data = memoryview(records)
    found = []
    for at, header in iterate_headers(data):
        found += [(record.offset, record.value) for record in decode_records(data[at : at + header.size])]
    return found


def test_a_log_that_is_being_closed_gets_no_other_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata is followed to the end of a stop, and others may come to lead: seed 935 of records."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            key = await make_topic(cluster, "t", 2)
            image = await cluster.agree()
            first = known(image, key).leader
            (other,) = set(known(image, key).replicas) - {first}
            partitions = cluster.brokers[first].parts.partitions
            closing, goes_on = threading.Event(), threading.Event()
            close = LocalLog.close

            def held(log: LocalLog, *, clean: bool = True) -> None:
                closing.set()
                assert goes_on.wait(DEADLINE_S)
                close(log, clean=clean)

            monkeypatch.setattr(LocalLog, "close", held)
            role = partitions.role(key)
            stop = asyncio.ensure_future(cluster.brokers[first].parts.logs.assignments.stop())
            try:
                await until(closing.is_set)
                await elect(cluster, key, other)
                await cluster.until(first, lambda image: known(image, key).leader == other)
                await partitions.settled()
                assert partitions.role(key) is role
            finally:
                goes_on.set()
            await stop
            monkeypatch.undo()

    run(work())


def test_who_copies_no_more_is_not_proposed(tmp_path: Path) -> None:
    """It would be refused, and proposed again, and nothing acknowledged meanwhile."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            key = await make_topic(cluster, "t", 2)
            partition = known(await cluster.agree(), key)
            first = partition.leader
            (other,) = set(partition.replicas) - {first}
            leads = leader(cluster, first, key)
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"a"))).error_code == 0
            await cluster.brokers[other].parts.replication.copying.stop()
            await until(lambda: not cluster.brokers[first].parts.replication.followers._sessions)
            await set_isr(cluster, key, [first])
            await cluster.until(first, lambda image: known(image, key).isr == (first,))
            assert leads.isr.leader.isr == (first,)
            assert leads.isr.leader.proposed is None

    run(work())


def test_others_lead_at_once_what_a_failed_disk_held_and_count_on_it_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            key = await make_topic(cluster, "t", 3, min_insync_replicas="1")
            first = known(await cluster.agree(), key).leader
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"a"))).error_code == 0
            leader(cluster, first, key)._fail(StorageFailure("planted"))
            await cluster.until(first, lambda image: known(image, key).leader not in (first, -1))
            await cluster.settled(first)
            image = await cluster.agree()
            second = known(image, key).leader
            assert first not in known(image, key).isr
            (third,) = {1, 2, 3} - {first, second}
            await cluster.settled(second)
            await cluster.settled(third)
            follower(cluster, third, key)._fail(StorageFailure("planted"))
            await cluster.until(second, lambda image: known(image, key).isr == (second,))
            async with RawClient(str(cluster.address(second))) as client:
                answer = await produce(client, "t", batch(b"b"))
                assert (answer.error_code, answer.base_offset) == (0, 1)
            leader(cluster, second, key)._fail(StorageFailure("planted"))
            await cluster.brokers[second].parts.replication.isr._asking  # type: ignore[misc]
            assert known(await cluster.agree(), key).leader == second, "nobody else has all of it"

    run(work())


@pytest.mark.parametrize("is_led", [True, False])
def test_an_idle_replica_whose_file_cannot_be_synced_behind_the_journal_is_counted_on_no_more(
    is_led: bool, tmp_path: Path
) -> None:
    """Nothing comes for it that would be refused, and nothing is flushed."""

    async def work() -> None:
        async with asyncio.timeout(150), running(tmp_path, 3) as cluster:
            key = await make_topic(cluster, "t", 3, min_insync_replicas="1")
            first = known(await cluster.agree(), key).leader
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"a"))).error_code == 0
            bad = first if is_led else next(each for each in (1, 2, 3) if each != first)
            role = leader(cluster, bad, key) if is_led else follower(cluster, bad, key)
            assert isinstance(role.log, LocalLog)
            role.log.fail_behind()
            await cluster.until(first, lambda image: bad not in known(image, key).isr)
            assert role.has_failed

    run(work())


def keyed(key: int, value: bytes) -> bytes:
    return encode_batch([Record(0, 1_700_000_000_000, b"%d" % key, value, ())])


@pytest.mark.parametrize("ends_in_a_gap", [False, True])
def test_a_compacted_log_is_copied_with_its_gaps(ends_in_a_gap: bool, tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3, {"log.cleaner.backoff.ms": "20"}) as cluster:
            key = await make_topic(
                cluster, "t", 2, cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0"
            )
            partition = known(await cluster.agree(), key)
            first = partition.leader
            (other,) = set(partition.replicas) - {first}
            await cluster.stop(other)
            await cluster.until(first, lambda image: known(image, key).isr == (first,))
            leads = leader(cluster, first, key)
            sent: dict[int, bytes] = {number: b"%d" % number + b"." * 100 for number in range(60)}
            async with RawClient(str(cluster.address(first))) as client:
                for number, value in sent.items():
                    assert (await produce(client, "t", keyed(number % 3, value))).error_code == 0
                await until(lambda: leads.log.gaps_below > 40)
                await until(lambda: local(leads.log).cleaning.dirtiness(2**62, Offset(60)) == 0)
                if ends_in_a_gap:  # as where tombstones came last
                    local(leads.log).copying.skip_to(Offset(70), now_ms=0)
                    leads._flusher.request(leads)
                end = leads.log.log_end_offset
                await cluster.start(other)
                await cluster.until(first, lambda image: set(known(image, key).isr) == {first, other})
                copy = follower(cluster, other, key)
                assert copy.log.log_end_offset == copy.log.flushed_end == end
                assert (await produce(client, "t", keyed(0, b"new"))).error_code == 0
            sent[end] = b"new"
            await elect(cluster, key, other)
            await cluster.until(other, lambda image: known(image, key).leader == other)
            await cluster.settled(other)
            await until(lambda: leader(cluster, other, key).high_watermark == end + 1)
            async with RawClient(str(cluster.address(other))) as client:
                found = dict([pair async for pair in everything(client)])
            assert found.items() <= sent.items()
            assert len(found) < 40
            assert {58, 59, end} <= found.keys(), "the newest of each key"

    run(work())


async def everything(client: RawClient) -> AsyncIterator[tuple[int, bytes | None]]:
    """Offset and value of all that a consumer gets."""
    at = 0
    while found := values((await fetch(client, "t", at)).records):
        for pair in found:
            yield pair
        at = found[-1][0] + 1


def test_a_leader_that_has_lost_what_was_flushed_has_nobody_cut_his_copy_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 2) as cluster:
            key = await make_topic(cluster, "t", 2)
            first = known(await cluster.agree(), key).leader
            other = 3 - first
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"a"))).error_code == 0
                await cluster.brokers[other].parts.replication.copying.stop()
                await set_isr(cluster, key, [first])
                assert (await produce(client, "t", batch(b"lost"))).error_code == 0
            damaged = follower(cluster, other, key).log
            damaged.read_only = "planted"  # type: ignore[misc]
            await elect(cluster, key, other, [other])
            await cluster.until(first, lambda image: known(image, key).leader == other)
            await cluster.settled(first)
            await cluster.settled(other)
            source = cluster.brokers[first].parts.replication.copying._sources[BrokerId(other)]
            await until(lambda: source._refused.get(key, 0) >= 2)
            assert follower(cluster, first, key).log.log_end_offset == 2

    run(work())
