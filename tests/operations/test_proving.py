"""Proofs of durable history: a thread ends with whoever waits for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from headrace.metadata.segments import PartitionCatalog
from headrace.operations.proving import Verdict, proved_in_thread
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.storage.tier.reader import Store
from tests.metadata.test_runs import TOPIC, ZERO
from tests.operations.test_histories import HISTORY
from tests.tier.test_chunks import publish


async def test_a_proof_that_is_cancelled_reads_no_further_object(tmp_path: Path) -> None:
    catalog = publish(PartitionCatalog.empty(TOPIC, ZERO), 3, 1)
    store, read = Store(DirectoryObjects(LocalDisk(), tmp_path)), list[int]()
    begun, go_on = threading.Event(), threading.Event()

    def on_read(count: int) -> None:
        read.append(count)
        begun.set()
        assert go_on.wait(60)

    proof = asyncio.ensure_future(proved_in_thread(Verdict(HISTORY), store, catalog, on_read))
    assert await asyncio.to_thread(begun.wait, 60)
    proof.cancel()
    with pytest.raises(asyncio.CancelledError):
        await proof
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()  # it waits for the thread
    assert len(read) == 1


async def test_a_proof_reads_every_object(tmp_path: Path) -> None:
    catalog = publish(PartitionCatalog.empty(TOPIC, ZERO), 3, 1)
    verdict, read = Verdict(HISTORY), list[int]()
    found = await proved_in_thread(verdict, Store(DirectoryObjects(LocalDisk(), tmp_path)), catalog, read.append)
    assert (len(read), len(found), verdict.is_whole) == (3, 3, True)
