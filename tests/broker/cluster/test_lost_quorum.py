"""A quorum that was lost: one broker goes on with what it knew, and whoever comes back from before is refused."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.base.limits import QUORUM_RECOVERY_EPOCHS
from headrace.broker.cluster.lost_quorum import Recovered, Remains, check_lost, examine, go_on, longest, probe
from headrace.broker.home import lineage
from headrace.broker.home.lineage import Superseded
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.members import Members
from headrace.storage.disk import LocalDisk
from tests import loops
from tests.broker.clusters import Cluster, running
from tests.broker.data_path import batch, fetch, produce
from tests.broker.group_broker import RawClient, until

DISK = LocalDisk()
SESSIONS = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "100"}


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


def recover(cluster: Cluster, *brokers: int) -> Recovered:
    """On the disks of these, which are stopped."""
    remains = [examine(DISK, cluster.data(broker)) for broker in brokers]
    best = longest(remains)
    check_lost(best, remains, {})
    return go_on(DISK, best, remains, random=random.Random(), now_ms=1)


async def voters(cluster: Cluster) -> dict[int, bool]:
    async with Client(cluster.bootstrap) as client:
        return {member.id: member.voter for member in (await Members(client).quorum()).members}


async def refused(cluster: Cluster, broker: int, join: int) -> None:
    """It stops by itself, and says what to do."""
    with pytest.raises(Superseded, match="headrace quorum rejoin"):
        await cluster.start(broker, join=(cluster.address(join),))


async def are_voters(cluster: Cluster, wanted: set[int]) -> None:
    def are() -> bool:
        memberships = (each.parts.metadata.membership for each in cluster.brokers.values())
        return all({peer.node for peer in membership.voters} == wanted for membership in memberships)

    await until(are)


def test_one_of_three_goes_on_and_the_lost_ones_come_back_as_learners_with_their_records(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3, SESSIONS) as cluster:
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("t", replication_factor=3)
            before = (await cluster.agree()).partition_info("t", 0)
            assert before is not None
            await cluster.settled(before.leader)
            async with RawClient(str(cluster.address(before.leader))) as client:
                assert (await produce(client, "t", batch(b"a", b"b"))).error_code == 0
            await cluster.stop(2, 3, 1)
            recover(cluster, 1)

            await cluster.start(1)
            after = cluster.image(1).partition_info("t", 0)
            assert after is not None
            assert after.leader_epoch > before.leader_epoch + QUORUM_RECOVERY_EPOCHS
            assert after.isr == (1,)
            assert await voters(cluster) == {1: True}
            async with RawClient(str(cluster.address(1))) as client:
                assert (await fetch(client, "t", 0)).high_watermark == 2
            await refused(cluster, 2, join=1)
            with pytest.raises(Superseded):  # nor without anybody to tell it so
                await cluster.start(2)
            assert lineage.rejoin(DISK, cluster.data(2)) is not None
            await cluster.start(2, join=(cluster.address(1),))
            await are_voters(cluster, {1, 2})
            await cluster.until(1, lambda image: set(image.topics[image.topic_ids["t"]].partitions[0].isr) == {1, 2})

    run(work())


def test_a_lost_majority_that_comes_back_by_itself_stops_as_soon_as_it_meets_the_recovered_broker(
    tmp_path: Path,
) -> None:
    """It was only cut off, decides without the others, and knows nothing of the recovery."""

    async def work() -> None:
        async with running(tmp_path, 3, SESSIONS) as cluster:
            await cluster.agree()
            await cluster.stop(1)
            recovered = recover(cluster, 1)
            old = {broker: cluster.brokers[broker] for broker in (2, 3)}
            async with Client(str(cluster.address(2))) as client:
                await Admin(client).create_topic("of-the-old-ones")
            await cluster.start(1)
            for number, broker in old.items():
                await broker.over()
                assert isinstance(broker.failure, Superseded), number
                assert str(recovered.lineage) in str(broker.failure)
            assert cluster.image(1).topic_names() == []
            await cluster.stop(2, 3)
            for number in old:
                with pytest.raises(Superseded):
                    await cluster.start(number)

    run(work())


def test_a_lost_broker_with_an_empty_disk_comes_as_any_new_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3)
            for broker in (1, 2):
                cluster.wipe(broker)
            recover(cluster, 3)
            await cluster.start(3)
            await cluster.start(1, join=(cluster.address(3),))
            await cluster.start(4, join=(cluster.address(3),))
            await are_voters(cluster, {1, 3, 4})
            assert cluster.image(4).lineage == cluster.image(3).lineage

    run(work())


def test_a_learner_goes_on_where_no_voter_is_left_and_of_two_directories_the_longest_log_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.start(4, join=(cluster.address(1),))
            await cluster.start(5, join=(cluster.address(1),))
            await cluster.agree()
            await cluster.stop(4)
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("later")
            await cluster.agree()
            await cluster.stop(5, 1, 2, 3)
            for broker in (1, 2, 3):
                cluster.wipe(broker)
            recover(cluster, 4, 5)
            await cluster.start(5)
            assert cluster.image(5).contains("later")
            await cluster.start(4, join=(cluster.address(5),))
            await are_voters(cluster, {4, 5})

    run(work())


def test_it_is_refused_where_a_majority_is_there_or_anybody_answers(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            await cluster.stop(1)
            one = examine(DISK, cluster.data(1))
            living, silent = await probe(one)
            assert living == {BrokerId(2): cluster.address(2), BrokerId(3): cluster.address(3)}
            assert silent == []
            with pytest.raises(UsageError, match="The quorum is not lost: of its 3 voters 1, 2, 3 are there"):
                check_lost(one, [one], living)
            with pytest.raises(UsageError, match="The quorum is not lost: of its 3 voters 1, 2 are there"):
                check_lost(one, [one], {BrokerId(2): Address("h", 1)})
            with pytest.raises(UsageError, match="is not stopped: h:1 answers"):
                check_lost(one, [one], {BrokerId(9): Address("h", 1)})
            await cluster.stop(2, 3)
            assert await probe(one) == ({}, [])
            both = [one, examine(DISK, cluster.data(2))]
            with pytest.raises(UsageError, match="are enough: start them"):
                check_lost(longest(both), both, {})
            check_lost(one, [one], {})

    run(work())


def test_who_takes_connections_and_says_nothing_is_not_lost_and_a_directory_may_be_a_copy(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            await cluster.stop(2, 3)
            shutil.copytree(cluster.data(1), tmp_path / "copy")
            one = examine(DISK, tmp_path / "copy")
            assert await probe(one) == ({BrokerId(1): cluster.address(1)}, [])
            await cluster.stop(1)
            hung = list[asyncio.StreamWriter]()
            async with await asyncio.start_server(lambda _, writer: hung.append(writer), *cluster.address(3)):
                living, silent = await probe(one)
                for writer in hung:
                    writer.close()
            assert (living, silent) == ({}, [cluster.address(3)])
            with pytest.raises(UsageError, match=f"listens at {cluster.address(3)}, and does not answer"):
                check_lost(one, [one], living, silent)

    run(work())


def test_a_directory_that_was_superseded_is_not_what_the_cluster_goes_on_with(tmp_path: Path) -> None:
    """Else it would begin a lineage in which its own broker does not start."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3)
            recover(cluster, 1)
            await cluster.start(1)
            await refused(cluster, 2, join=1)
            with pytest.raises(UsageError, match=f"remove .*{lineage.FILE_NAME}"):
                recover(cluster, 2)

    run(work())


def test_a_broker_that_rejoins_has_no_vote_where_it_voted_before(tmp_path: Path) -> None:
    """It forgot how, and what it had acknowledged: with it, one that was lost would be a majority of before."""

    async def work() -> None:
        async with running(tmp_path, 3, SESSIONS) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3)
            recovered = recover(cluster, 1)
            lineage.note_superseded(DISK, cluster.data(2), "told")
            lineage.rejoin(DISK, cluster.data(2))
            with structlog.testing.capture_logs() as lines:
                back = asyncio.ensure_future(cluster.start(3))
                rejoined = asyncio.ensure_future(cluster.start(2, join=(cluster.address(1),)))
                await until(lambda: any("does not know of recovery 1" in str(line) for line in lines))
                assert not back.done()
                await cluster.start(1)
            await rejoined
            with pytest.raises(Superseded, match=str(recovered.lineage)):
                await back
            await are_voters(cluster, {1, 2})

    run(work())


def test_a_recovery_that_was_done_is_told_as_done_where_another_directory_fails(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 5) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3, 4, 5)
            best = longest([examine(DISK, cluster.data(broker)) for broker in (1, 2)])
            other = 3 - best.identity.broker_id
            (cluster.data(other) / f"{lineage.FILE_NAME}.tmp").mkdir()  # so that nothing can be noted there
            recovered = recover(cluster, 1, 2)
            assert set(recovered.left) == {cluster.data(other)}
            assert examine(DISK, best.data).image.lineage == recovered.lineage

    run(work())


def test_directories_of_other_clusters_lineages_or_none_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path / "a", 3) as one, running(tmp_path / "b", 1) as other:
            await one.agree()
            await one.stop(1, 2, 3)
            await other.stop(1)
            mine = examine(DISK, one.data(1))
            with pytest.raises(UsageError, match="name directories of one cluster"):
                longest([mine, examine(DISK, other.data(1))])
            shutil.copytree(one.data(1), tmp_path / "copy")
            with pytest.raises(UsageError, match="are both of broker 1"):
                longest([mine, examine(DISK, tmp_path / "copy")])
            with pytest.raises(UsageError, match="is no broker's data directory"):
                examine(DISK, tmp_path)
            recover(one, 1)
            with pytest.raises(UsageError, match="another recovery of the quorum"):
                longest([examine(DISK, one.data(1)), examine(DISK, one.data(2))])
            with pytest.raises(UsageError, match="so that it is told, before it rejoins"):
                lineage.rejoin(DISK, one.data(1))

    run(work())


class Killed(BaseException):
    """The process is gone."""


class DyingDisk:
    """A real one, whose process dies at one of its operations."""

    def __init__(self, operations: int) -> None:
        self._left = operations

    def __getattr__(self, name: str) -> Any:
        operation = getattr(DISK, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Killed
            return operation(*arguments, **options)

        return counted


def test_a_kill_at_any_operation_leaves_the_old_state_or_the_new_and_it_can_be_asked_for_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path / "cluster", 5) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3, 4, 5)
            seen = set[int]()
            for operations in count():
                copies = [tmp_path / f"{operations}-{broker}" for broker in (1, 2)]
                for broker, copy in zip((1, 2), copies, strict=True):
                    shutil.copytree(cluster.data(broker), copy)
                if not killed(copies, operations):
                    break
                seen |= {examine(DISK, longest_of(copies).data).image.lineage.number}
                finish(copies)
            assert seen == {0, 1}

    run(work())


def killed(copies: list[Path], operations: int) -> bool:
    remains = [examine(DISK, copy) for copy in copies]
    disk: Any = DyingDisk(operations)
    try:
        go_on(disk, longest(remains), remains, random=random.Random(), now_ms=1)
    except Killed:
        return True
    return False


def longest_of(copies: list[Path]) -> Remains:
    """The longest of the copies that still have metadata."""
    found = list[Remains]()
    for copy in copies:
        with suppress(UsageError):
            found.append(examine(DISK, copy))
    return max(found, key=lambda one: (one.image.lineage.number, one.length))


def finish(copies: list[Path]) -> None:
    """As an operator does who asks again: where the new lineage began, the other directory is told so, and joins it."""
    best = longest_of(copies)
    if best.image.lineage.number == 0:
        remains = [examine(DISK, copy) for copy in copies]
        go_on(DISK, best, remains, random=random.Random(), now_ms=1)
        best = longest_of(copies)
    else:
        (other,) = [copy for copy in copies if copy != best.data]
        lineage.note_superseded(DISK, other, "told when it is started")
        lineage.rejoin(DISK, other)
    assert best.image.lineage.number == 1
    assert best.membership.voters == {best.peer}


def test_two_recoveries_that_know_nothing_of_each_other_stay_apart(tmp_path: Path) -> None:
    """Neither is told to stop by the other: somebody has to choose."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3)
            recover(cluster, 1)
            recover(cluster, 2)
            await cluster.start(1)
            remains = examine(DISK, cluster.data(2))
            assert remains.image.lineage.number == cluster.image(1).lineage.number == 1
            await cluster.start(2)
            assert await voters_of(cluster, 1) == {1: True}
            assert await voters_of(cluster, 2) == {2: True}

    run(work())


async def voters_of(cluster: Cluster, broker: int) -> dict[int, bool]:
    async with Client(str(cluster.address(broker))) as client:
        return {member.id: member.voter for member in (await Members(client).quorum()).members}
