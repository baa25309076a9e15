"""Files of logs that are gone go a little at a time, and nobody waits for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.broker.partitions.logs.discarding import Discarding
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
    async with asyncio.timeout(150), running(tmp_path / "data") as address, RawClient(address) as client:
        try:
            await filled_and_deleted(client)
            await until(begun.is_set)
            await create(client, "new")
            assert (await produce(client, "new", batch(b"v"))).error_code == 0
        finally:
            gate.set()
        await until(lambda: not old_in(tmp_path))


async def filled_and_deleted(client: RawClient) -> None:
    await create(client, "old")
    await produce(client, "old", batch(b"v" * 100_000))
    (gone,) = (await client.ask(4, DeleteTopicsRequest(topic_names=("old",), timeout_ms=10_000))).responses
    assert gone.error_code == 0


def old_in(directory: Path) -> list[Path]:
    return [path for path in (directory / "data" / "logs").iterdir() if path.name.startswith("old")]


async def test_what_a_stop_left_of_them_goes_beside_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(150):
        with monkeypatch.context() as slow:
            slow.setattr("headrace.storage.log.removal.DELETED_AT_ONCE_BYTES", 1)
            async with running(tmp_path / "data") as address, RawClient(address) as client:
                await filled_and_deleted(client)
            assert old_in(tmp_path), "it takes many parts"
            async with running(tmp_path / "data") as address, RawClient(address) as client:
                await create(client, "new")
                assert (await produce(client, "new", batch(b"v"))).error_code == 0
            assert old_in(tmp_path), "and so it does at a start"
        async with running(tmp_path / "data"):
            await until(lambda: not old_in(tmp_path))


async def test_what_cannot_be_removed_keeps_no_broker_from_starting_and_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalDisk, path: Path, *__: int) -> bool:
        raise PermissionError("scripted")

    monkeypatch.setattr("headrace.broker.partitions.logs.discarding.DELETED_RETRY_MS", 1)
    async with asyncio.timeout(150):
        with monkeypatch.context() as refusing:
            refusing.setattr(LocalDisk, "remove_some", refuse)
            refusing.setattr(LocalDisk, "remove_tree", refuse)
            async with running(tmp_path / "data") as address, RawClient(address) as client:
                await filled_and_deleted(client)
        assert old_in(tmp_path)
        with monkeypatch.context() as refusing, capture_logs() as told:
            refusing.setattr(LocalDisk, "remove_some", refuse)
            refusing.setattr(LocalDisk, "remove_tree", refuse)
            async with running(tmp_path / "data") as address, RawClient(address) as client:
                await create(client, "new")
                assert (await produce(client, "new", batch(b"v"))).error_code == 0
                await until(lambda: any("cannot be removed yet" in each["event"] for each in told))
                refusing.undo()
                await until(lambda: not old_in(tmp_path))
        warnings = [each for each in told if "cannot be removed yet" in each["event"]]
        assert [each["log_level"] for each in warnings] == ["warning"], "told once"


class Scripted:
    """A `LogRemoval` in so many parts; those that are named fail."""

    def __init__(self, name: str, parts: int, failing: Sequence[int], done: list[str]) -> None:
        self.name = name
        self._left = parts
        self._tries = 0
        self._failing = failing
        self._done = done

    def some(self) -> bool:
        self._tries += 1
        if self._tries in self._failing:
            self._done.append(f"{self.name} fails")
            raise OSError("scripted")
        self._left -= 1
        self._done.append(self.name)
        return self._left == 0


def scripted() -> Discarding:
    def on_bug(error: BaseException) -> None:
        raise error

    return Discarding(on_bug)


async def test_what_fails_goes_behind_the_others_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.partitions.logs.discarding.DELETED_RETRY_MS", 1)
    done = list[str]()
    discarding = scripted()
    async with asyncio.timeout(150):
        discarding.add([Scripted("a", 2, (2, 3, 4), done), Scripted("b", 2, (), done)])
        await until(lambda: len(done) == 7)
    assert done == ["a", "a fails", "b", "b", "a fails", "a fails", "a"]
    await discarding.stop()


async def test_what_comes_while_nothing_can_be_removed_does_not_wait_nor_does_a_stop() -> None:
    done = list[str]()
    discarding = scripted()
    async with asyncio.timeout(150):
        discarding.add([Scripted("a", 1, range(9), done)])
        await until(lambda: done == ["a fails"])
        discarding.add([Scripted("b", 1, (), done)])
        await until(lambda: "b" in done)
        await discarding.stop()
        discarding.add([Scripted("c", 1, (), done)])
    assert "c" not in done
