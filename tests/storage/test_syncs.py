"""Syncs that the loop begins and hears of later, by the kernel and by threads: done once, failures as OSError."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import syncs
from headrace.storage.disk import LocalDisk
from headrace.storage.syncs import HAS_KERNEL_SYNCS, KernelSyncs, Syncs, ThreadSyncs, syncs_on

DEADLINE_S = 150
kernel_only = pytest.mark.skipif(not HAS_KERNEL_SYNCS, reason="this system has no asynchronous syncs of the kernel")


class Failing:
    """A file whose sync fails, whichever way it is asked for."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT)

    def fileno(self) -> int:
        return self.descriptor

    def sync(self) -> None:
        raise OSError(errno.EIO, "planted")


async def ended(begun: Syncs, file: Any) -> OSError | None:
    outcome: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    begun.begin(file, outcome.set_result)
    assert not outcome.done(), "later, never at once"
    return await outcome


@pytest.mark.parametrize("make", [syncs_on, ThreadSyncs])
async def test_a_file_is_synced_and_it_is_told_once(
    tmp_path: Path, make: Callable[[asyncio.AbstractEventLoop], Syncs]
) -> None:
    file = LocalDisk().open(tmp_path / "file", create=True)
    file.append([b"something"])
    begun = make(asyncio.get_running_loop())
    assert await ended(begun, file) is None
    many = await asyncio.gather(*(ended(begun, file) for _ in range(200)))
    assert many == [None] * 200
    file.close()


async def test_a_failed_sync_in_a_thread_is_told(tmp_path: Path) -> None:
    file = Failing(tmp_path / "file")
    failure = await ended(ThreadSyncs(asyncio.get_running_loop()), file)
    assert failure is not None
    assert failure.errno == errno.EIO
    os.close(file.descriptor)


@kernel_only
async def test_a_failed_sync_of_the_kernel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension hands a negative result on as 64 bits without a sign."""
    made = vars(syncs)["Operation"]

    class Failed:
        @staticmethod
        def fdsync(descriptor: int) -> Any:
            return Wrapped(made.fdsync(descriptor))

    class Wrapped:
        def __init__(self, operation: Any) -> None:
            self.operation = operation

        def set_callback(self, callback: Callable[[int], object]) -> None:
            self.operation.set_callback(lambda _: callback(2**64 - errno.EIO))

    class Unwrapping:
        def __init__(self, context: Any) -> None:
            self.context = context

        def submit(self, operation: Wrapped) -> Any:
            return self.context.submit(operation.operation)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.context, name)

    begun = syncs_on(asyncio.get_running_loop())
    assert isinstance(begun, KernelSyncs)
    monkeypatch.setattr(syncs, "Operation", Failed)
    monkeypatch.setattr(begun, "_context", Unwrapping(begun._context))
    file = LocalDisk().open(tmp_path / "file", create=True)
    failure = await ended(begun, file)
    assert failure is not None
    assert failure.errno == errno.EIO
    file.close()


@kernel_only
@pytest.mark.parametrize("found", [0, 1], ids=["before any", "after one"])
async def test_a_signal_in_the_middle_of_a_look_loses_no_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int
) -> None:
    """io_getevents(2) fails with EINTR where it finds nothing and a signal waits. This happens when a broker is stopped
    and goes on, or its terminal changes its size."""

    class Interrupted:
        def __init__(self, context: Any) -> None:
            self.context = context
            self.looks = 0

        def process_events(self) -> int:
            self.looks += 1
            if self.looks == 1 + found:
                raise SystemError(errno.EINTR, os.strerror(errno.EINTR))
            return int(self.context.process_events())

        def __getattr__(self, name: str) -> Any:
            return getattr(self.context, name)

    begun = syncs_on(asyncio.get_running_loop())
    assert isinstance(begun, KernelSyncs)
    context = Interrupted(begun._context)
    monkeypatch.setattr(begun, "_context", context)
    file = LocalDisk().open(tmp_path / "file", create=True)
    assert await asyncio.wait_for(ended(begun, file), DEADLINE_S) is None
    assert context.looks > found
    assert await asyncio.wait_for(ended(begun, file), DEADLINE_S) is None
    file.close()


@pytest.mark.parametrize(
    ("result", "number"), [(0, None), (-errno.EIO, errno.EIO), (2**64 - errno.ENOSPC, errno.ENOSPC)]
)
def test_what_a_result_means(result: int, number: int | None) -> None:
    failure = syncs._failure(result)
    assert (failure.errno if failure else None) == number


@kernel_only
async def test_where_the_kernel_refuses_a_thread_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def submit(self, _: Any) -> None:
            raise OSError(errno.EINVAL, "planted")

    begun = syncs_on(asyncio.get_running_loop())
    assert isinstance(begun, KernelSyncs)
    monkeypatch.setattr(begun, "_context", Refusing())
    file = Failing(tmp_path / "file")
    failure = await ended(begun, file)
    assert failure is not None
    assert str(failure) == "[Errno 5] planted"
    os.close(file.descriptor)


def test_one_disk_serves_one_loop_after_the_other(tmp_path: Path) -> None:
    disk = LocalDisk()
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    async def once() -> None:
        file = disk.open(tmp_path / "file", create=True)
        outcome: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        disk.begin_sync(file, outcome.set_result)
        assert await outcome is None
        file.close()

    for _ in range(20):
        asyncio.run(once())
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_a_loop_may_close_with_a_sync_under_way(tmp_path: Path) -> None:
    disk = LocalDisk()
    told: list[object] = []

    async def begin() -> None:
        file = disk.open(tmp_path / "file", create=True)
        disk.begin_sync(file, told.append)

    asyncio.run(begin())
    assert told in ([], [None])
