"""The simulated object store, through the shipped driver: what real ones promise, and how they fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import TypeVar
from unittest.mock import patch

import pytest

from headrace.base.errors import StorageFailure
from headrace.base.limits import STORE_REQUEST_MS_MAX, STORE_RETRIES_MAX
from headrace.sim.cluster.moves.store import SimStore
from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process
from headrace.storage import remote
from headrace.storage.remote import RemoteObjects

T = TypeVar("T")


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(random.Random(7))
    yield loop
    loop.workers.close()
    loop.close()


@pytest.fixture
def store(loop: VirtualLoop) -> SimStore:
    return SimStore(loop, random.Random(8))


def asked(store: SimStore, work: Callable[[RemoteObjects], T]) -> T:
    """The answer that a worker thread got."""
    return store.loop.run_until_complete(store.loop.run_in_executor(None, work, store.mount()))


def test_what_is_stored_is_read_listed_and_deleted(store: SimStore) -> None:
    for key in ("a/b/1", "a/b/2", "a/c/3"):
        assert asked(store, lambda objects, key=key: objects.put(key, key.encode()))  # type: ignore[misc]
    assert asked(store, lambda objects: objects.get("a/b/1")) == b"a/b/1"
    assert asked(store, lambda objects: objects.get_range("a/b/1", 2, 3)) == b"b/1"
    assert [meta.key for meta in asked(store, lambda objects: objects.list("a/b/"))] == ["a/b/1", "a/b/2"]
    assert asked(store, lambda objects: objects.directories("a/")) == ["b", "c"]
    asked(store, lambda objects: objects.delete("a/b/1"))
    with pytest.raises(FileNotFoundError):
        asked(store, lambda objects: objects.size("a/b/1"))
    with pytest.raises(EOFError):
        asked(store, lambda objects: objects.get_range("a/b/2", 2, 9))
    assert store.loop.time() > 0


def test_an_object_is_written_once(store: SimStore) -> None:
    assert asked(store, lambda objects: objects.put("key", b"first"))
    assert not asked(store, lambda objects: objects.put("key", b"second"))
    assert store.objects["key"].data == b"first"
    assert asked(store, lambda objects: objects.put("key", b"third", if_absent=False))
    assert store.objects["key"].data == b"third"


def test_a_lost_answer_is_a_put_that_was_done(store: SimStore) -> None:
    """The library tries again, and is told that the object is there."""
    store.worsen(lost=1.0)
    with pytest.raises(StorageFailure):
        asked(store, lambda objects: objects.put("key", b"data", if_absent=False))
    assert store.objects["key"].data == b"data"
    assert store.requests == 1 + STORE_RETRIES_MAX


def test_a_refused_put_is_not_done(store: SimStore) -> None:
    store.worsen(refused=1.0)
    with pytest.raises(StorageFailure, match="503"):
        asked(store, lambda objects: objects.put("key", b"data"))
    store.heal()
    store.loop.run_until_complete(asyncio.sleep(60))
    assert not store.objects


def test_a_request_that_hangs_ends_and_may_still_arrive(store: SimStore) -> None:
    store.worsen(hangs=1.0)
    for number in range(8):
        began = store.loop.time()
        with pytest.raises(StorageFailure, match="too long"):
            asked(store, lambda objects, number=number: objects.put(f"key/{number}", b"data"))  # type: ignore[misc]
        assert store.loop.time() - began < STORE_REQUEST_MS_MAX / 1000 + 1
    assert 0 < len(store.objects) < 8


def test_a_put_that_is_on_its_way_arrives_though_its_sender_dies(store: SimStore) -> None:
    process = Process("broker")

    async def put() -> None:
        await asyncio.get_running_loop().run_in_executor(None, store.mount().put, "key", b"data")

    async def story() -> None:
        store.loop.spawn(process, put())
        while not store.requests:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.000_1)
        store.loop.kill(process)
        assert not store.objects
        await asyncio.sleep(1)

    store.loop.run_until_complete(story())
    assert store.objects["key"].data == b"data"


def test_an_upload_in_parts_that_is_torn_leaves_nothing(store: SimStore) -> None:
    with patch.object(remote, "OBJECT_SINGLE_BYTES_MAX", 10), patch.object(remote, "OBJECT_PART_BYTES", 5):
        store.worsen(refused=0.9)
        with pytest.raises(StorageFailure):
            asked(store, lambda objects: objects.put("key", bytes(20), if_absent=False))
        assert (store.torn, dict(store.objects)) == (1, {})
        store.heal()
        assert asked(store, lambda objects: objects.put("key", bytes(20)))
    assert store.objects["key"].data == bytes(20)


def test_a_listing_may_be_behind(store: SimStore) -> None:
    store.worsen(listing_lag_seconds=1.0)
    asked(store, lambda objects: objects.put("key", b"data"))
    assert not list(asked(store, lambda objects: objects.list("")))
    store.loop.run_until_complete(asyncio.sleep(1))
    assert [meta.size for meta in asked(store, lambda objects: objects.list(""))] == [4]


def test_a_request_on_the_event_loop_is_refused(store: SimStore) -> None:
    with pytest.raises(RuntimeError, match="block the broker"):
        store.mount().put("key", b"data")


def test_objects_may_be_away_for_a_while(store: SimStore) -> None:
    asked(store, lambda objects: objects.put("key", b"data"))
    store.lacking = frozenset({"key"})
    with pytest.raises(FileNotFoundError):
        asked(store, lambda objects: objects.get("key"))
    assert not list(asked(store, lambda objects: objects.list("")))
    assert not asked(store, lambda objects: objects.put("key", b"other")), "whoever is away is not replaced"
    store.heal()
    assert asked(store, lambda objects: objects.get("key")) == b"data"
