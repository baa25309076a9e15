"""No request leaves a reference cycle of ours behind. A broker's collector runs rarely (`broker.system`), and
everything that a cycle holds stays in memory until then."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from traceback import walk_tb
from typing import Final

import pytest

from headrace.base.errors import CorruptData, without_frames
from headrace.broker.durable.history import History, HistoryUnavailable
from headrace.broker.system import SystemClock
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from tests.broker.group_broker import running
from tests.promises.support.strangers import End, Kind, Stranger, kinds, of_names

REQUESTS: Final = 20
LAST: Final = Kind("all before it is through", End.ANSWERED, lambda _: of_names("plain"))


async def test_no_request_leaves_a_cycle_of_ours(tmp_path: Path) -> None:
    left: dict[str, Counter[str]] = {}
    async with running(tmp_path / "data") as bootstrap:
        stranger = Stranger(bootstrap)
        await asyncio.to_thread(stranger.prepare)
        cheap = [kind for kind in kinds() if kind.end is End.ANSWERED and not kind.is_costly]
        for kind in cheap:  # the others end connections: asyncio's transports are cycles, uvloop's are not
            await asyncio.to_thread(stranger.send, kind, range(REQUESTS))
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for kind in cheap:
                await asyncio.to_thread(stranger.send, kind, range(REQUESTS, 2 * REQUESTS))
                await asyncio.to_thread(stranger.send, LAST, range(1))
                found = _garbage()
                if sum(found.values()) >= REQUESTS:
                    left[kind.name] = found
        finally:
            gc.enable()
            gc.unfreeze()
    assert not left


def _garbage() -> Counter[str]:
    """Objects of our own classes that only the collector frees, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        classes = [type(each) for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return Counter(each.__name__ for each in classes if each.__module__.startswith("headrace."))


async def test_a_failure_that_is_remembered_holds_no_reader(tmp_path: Path) -> None:
    history = History(DirectoryObjects(LocalDisk(), tmp_path), cache_bytes=0, clock=SystemClock())
    history._on_failure("object", OSError("gone"))
    depths = set()
    for _ in range(3):
        with pytest.raises(HistoryUnavailable, match="gone") as raised:
            history._check_failures("object")
        depths.add(len(list(walk_tb(raised.tb))))
    assert len(depths) == 1, "one that is raised again and again grows by its frames each time"


def test_an_error_without_frames_keeps_what_it_says() -> None:
    try:
        try:
            raise OSError("the disk")
        except OSError as error:
            raise CorruptData("the batch") from error
    except CorruptData as error:
        kept = without_frames(error)
    assert str(kept) == "the batch"
    assert str(kept.__cause__) == "the disk"
    assert kept.__traceback__ is None
    assert kept.__cause__ is not None
    assert kept.__cause__.__traceback__ is None
