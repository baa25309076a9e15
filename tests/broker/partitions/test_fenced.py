"""An engine that stores nothing of an epoch any more: its leader acknowledges nothing, and no disk counts as failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.base.ids import TopicPartition
from headrace.broker.reactions import Reactions
from headrace.storage.engine.faults import Fenced
from headrace.storage.engine.flushing import Outcome
from headrace.storage.log.engine import LocalRound
from headrace.storage.log.flush import Ticket
from headrace.wire.errors import ErrorCode
from tests.broker import replicas
from tests.broker.clusters import running
from tests.broker.data_path import batch, fetch, produce
from tests.broker.group_broker import RawClient


async def test_a_fenced_flush_ends_the_role_and_a_later_epoch_opens_the_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fenced(_: LocalRound, __: Ticket, *, journaled: bool) -> Outcome:
        return Fenced("Epoch 7 has begun.")

    async with asyncio.timeout(150), running(tmp_path, 1) as cluster, RawClient(cluster.bootstrap) as client:
        key = await replicas.make_topic(cluster, "t", 1)
        assert (await produce(client, "t", batch(b"first"))).error_code == 0
        before, told = replicas.leader(cluster, 1, key), list[TopicPartition]()
        monkeypatch.setattr(Reactions, "on_failed", lambda _, key: told.append(key))
        with monkeypatch.context() as patch:
            patch.setattr(LocalRound, "_sync", fenced)
            refused = await produce(client, "t", batch(b"lost"))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await produce(client, "t", batch(b"lost, too"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert before.is_fenced
        assert told == [], "the controller would move the partition away from a sound disk"
        await replicas.elect(cluster, key, 1)
        await cluster.settled(1)
        after = replicas.leader(cluster, 1, key)
        assert after is not before
        assert after.log is not before.log
        assert after.leader_epoch > before.leader_epoch
        appended = await produce(client, "t", batch(b"second"))
        assert (appended.error_code, appended.base_offset) == (0, 1)
        found = await fetch(client, "t", 0)
        assert b"first" in bytes(found.records)
        assert b"lost" not in bytes(found.records)
