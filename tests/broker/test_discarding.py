"""Files of logs that are gone go a little at a time, and nobody waits for that."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from headrace.storage.disk import LocalDisk
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from tests.broker.data_path import batch, create, produce
from tests.broker.group_broker import RawClient, running, until


async def test_another_log_is_opened_while_a_deleted_ones_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = threading.Event(), threading.Event()
    remove = LocalDisk.remove_tree

    def slow(disk: LocalDisk, path: Path) -> None:
        begun.set()
        gate.wait()
        remove(disk, path)

    monkeypatch.setattr(LocalDisk, "remove_tree", slow)
    async with asyncio.timeout(60), running(tmp_path / "data") as address, RawClient(address) as client:
        try:
            await create(client, "old")
            await produce(client, "old", batch(b"v"))
            (gone,) = (await client.ask(4, DeleteTopicsRequest(topic_names=("old",), timeout_ms=10_000))).responses
            assert gone.error_code == 0
            await until(begun.is_set)
            await create(client, "new")
            assert (await produce(client, "new", batch(b"v"))).error_code == 0
        finally:
            gate.set()
        logs = tmp_path / "data" / "logs"
        await until(lambda: not any(path.name.startswith("old") for path in logs.iterdir()))


async def test_what_a_stop_left_of_them_goes_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.log.engine.DELETED_AT_ONCE_BYTES", 1)
    logs = tmp_path / "data" / "logs"
    async with asyncio.timeout(60):
        async with running(tmp_path / "data") as address, RawClient(address) as client:
            await create(client, "old")
            await produce(client, "old", batch(b"v" * 100_000))
            await client.ask(4, DeleteTopicsRequest(topic_names=("old",), timeout_ms=10_000))
        assert any(path.name.startswith("old") for path in logs.iterdir()), "it takes many parts"
        async with running(tmp_path / "data"):
            assert not any(path.name.startswith("old") for path in logs.iterdir())
