"""Commits that come in one turn of the event loop are appended as one batch, behind nothing that came later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from headrace.base.ids import NO_EPOCH, NO_TOPIC_ID, Offset
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.groups.answers import Told
from headrace.broker.groups.shard import GroupShard
from headrace.broker.system import SystemClock, system_random
from headrace.coordinators.groups.events import CommitOffsets, CommitReply, Delete, DeleteReply, NewOffset
from headrace.coordinators.groups.model import NamedPartition
from headrace.storage.disk import LocalDisk
from headrace.wire.batches import decode_pairs, iterate_headers
from headrace.wire.errors import ErrorCode
from tests.broker.group_broker import QUICK, RawClient
from tests.broker.groups.test_wire import find

DEADLINE_S: Final = 150
ACCEPTED: Final = CommitReply(errors=(ErrorCode.NONE,))


class Found(NamedTuple):
    shard: GroupShard

    def commit(self, group: str, offset: int, *, metadata: str = "", partition: int = 0) -> asyncio.Future[Told]:
        new = NewOffset(
            partition=NamedPartition("t", partition),
            topic_id=NO_TOPIC_ID,
            offset=Offset(offset),
            leader_epoch=NO_EPOCH,
            metadata=metadata,
        )

        def event(waiter: int) -> CommitOffsets:
            return CommitOffsets(waiter=waiter, member_id="", instance_id=None, generation=-1, offsets=(new,))

        return self.shard.ask(group, event)

    def batches(self) -> list[int]:
        """How many records each batch of the log has."""
        log = self.shard.partition.log
        data = self.shard.partition.read(log.log_start_offset, 1 << 20, committed_only=False, at_least_one=True)
        return [len(decode_pairs(data[at : at + header.size])) for at, header in iterate_headers(data)]


@asynccontextmanager
async def found(directory: Path) -> AsyncIterator[Found]:
    """The one shard of a broker."""
    config = BrokerConfig(data=directory, port=0, configs={**QUICK, "offsets.topic.num.partitions": "1"})
    async with (
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await find(client)
        assert broker._parts is not None
        (shard,) = broker._parts.requests.services.groups.shards
        yield Found(shard)


async def test_commits_of_one_turn_share_a_batch(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        told = await asyncio.gather(*(groups.commit(f"group {number % 5}", number) for number in range(20)))
        assert told == [ACCEPTED] * 20
        assert groups.batches() == [20]
        assert await groups.commit("group 0", 100) == ACCEPTED
        assert groups.batches() == [20, 1]
        kept = {name: group.offsets[NamedPartition("t", 0)].offset for name, group in groups.shard.groups.items()}
        assert kept == {"group 0": 100, "group 1": 16, "group 2": 17, "group 3": 18, "group 4": 19}


async def test_what_comes_behind_a_commit_is_appended_behind_it(tmp_path: Path) -> None:
    """A group that is deleted in the turn of its commit is gone, and not brought back by it."""
    async with found(tmp_path) as groups:
        assert await groups.commit("g", 1) == ACCEPTED
        commit = groups.commit("g", 2)
        deleted = groups.shard.ask("g", lambda waiter: Delete(waiter=waiter))
        other = groups.commit("other", 3)
        told: list[Told] = [*await asyncio.gather(commit, deleted, other)]
        assert told == [ACCEPTED, DeleteReply(error=ErrorCode.NONE), ACCEPTED]
        assert groups.batches() == [1, 1, 1, 1]
        assert list(groups.shard.groups) == ["other"]


async def test_many_bytes_of_one_turn_go_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.groups.gathering.GROUP_GATHERED_BYTES_MAX", 1_000)
    async with found(tmp_path) as groups:
        told = await asyncio.gather(
            *(groups.commit("g", number, metadata="x" * 400, partition=number) for number in range(5))
        )
        assert told == [ACCEPTED] * 5
        assert groups.batches() == [2, 2, 1]


async def test_a_commit_that_is_too_large_takes_no_other_with_it(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        settings = groups.shard.partition.settings
        groups.shard.partition.settings = replace(settings, max_message_bytes=600)
        small, large, other = groups.commit("g", 1), groups.commit("g", 2, metadata="x" * 600), groups.commit("h", 3)
        refused = CommitReply(errors=(ErrorCode.INVALID_COMMIT_OFFSET_SIZE,))
        told: list[Told] = [*await asyncio.gather(small, large, other)]
        assert told == [ACCEPTED, refused, ACCEPTED]
        assert groups.batches() == [1, 1]


async def test_who_gathers_when_the_partition_is_lost_is_sent_elsewhere(tmp_path: Path) -> None:
    async with found(tmp_path) as groups:
        commit = groups.commit("g", 1)
        groups.shard.lose()
        assert await commit is ErrorCode.NOT_COORDINATOR
        await asyncio.sleep(0)
        assert groups.shard.partition.log.log_end_offset == 0
