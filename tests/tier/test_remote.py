"""A real S3-compatible server: large objects, credentials, and history that is proven straight from it."""

from __future__ import annotations

import threading
import traceback
from random import Random

import pytest

from headrace.base.errors import HeadraceError, StorageFailure, UsageError
from headrace.base.ids import PartitionIndex
from headrace.base.limits import OBJECT_PART_BYTES, OBJECT_SINGLE_BYTES_MAX
from headrace.storage.objects import open_objects
from headrace.storage.tier.reader import Store
from tests.tier.conftest import History
from tools.servers.s3_server import S3Server


def test_a_large_object_goes_in_parts_and_is_written_once(s3_url: str) -> None:
    objects = open_objects(s3_url)
    large = Random(1).randbytes(OBJECT_SINGLE_BYTES_MAX + OBJECT_PART_BYTES + 5)
    assert objects.put("large", large)
    assert not objects.put("large", large[:-1] + b"?")
    assert not objects.put("large", b"small")
    assert objects.get("large") == large
    assert objects.get_range("large", OBJECT_PART_BYTES - 2, 4) == large[OBJECT_PART_BYTES - 2 : OBJECT_PART_BYTES + 2]


def test_of_many_that_race_for_a_key_one_wins_and_its_bytes_stay(s3_url: str) -> None:
    results: dict[int, bool] = {}
    barrier = threading.Barrier(6)

    def race(number: int) -> None:
        store = open_objects(s3_url)
        barrier.wait()
        results[number] = store.put("one/key", str(number).encode() * 1000)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, won in results.items() if won]
    assert len(winners) == 1
    assert open_objects(s3_url).get("one/key") == str(winners[0]).encode() * 1000


def test_history_is_exported_and_proven(s3_url: str) -> None:
    history = History(open_objects(s3_url))
    for count in (3, 1, 4):
        history.export([history.batch([b"v" * 50] * 3) for _ in range(count)])
    store = Store.open(s3_url)
    topic = store.topic("orders")
    assert store.verify(topic, PartitionIndex(0)).records == len(history.records)
    assert [bytes(batch) for batch, _ in store.batches(topic, PartitionIndex(0), 0, 1000)] == history.batches


def told(error: HeadraceError) -> str:
    """All that any log could hold of it."""
    return "".join(traceback.format_exception(error)) + repr(error)


def test_credentials_are_in_no_error(s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This server says the access key back, with what was signed."""
    access, wrong = s3.environment["AWS_ACCESS_KEY_ID"], "a secret that is wrong"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", wrong)
    objects = open_objects(s3_url)
    for call in (objects.get, objects.size, objects.delete, objects.list, lambda key: objects.put(key, b"x")):
        with pytest.raises(StorageFailure) as failure:
            call("a")
        for secret in (access, wrong, "Signature=", "StringToSign"):
            assert secret not in told(failure.value)


@pytest.mark.parametrize(
    "url", ["s3://access:hidden@bucket/x", "s3://bucket/x?secret_access_key=hidden", "s3://bucket/x#hidden"]
)
def test_credentials_in_a_url_are_refused_and_not_said_again(url: str) -> None:
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY") as refusal:
        open_objects(url)
    assert "hidden" not in told(refusal.value)


def test_a_store_that_is_gone_is_a_failure_and_is_used_again_when_it_is_back(own_s3: S3Server) -> None:
    objects = open_objects(own_s3.url())
    objects.put("a", b"x")
    own_s3.kill()
    for call in (
        objects.get,
        objects.list,
        lambda key: objects.put(key, b"y"),
        lambda key: objects.get_range(key, 0, 1),
    ):
        with pytest.raises(StorageFailure):
            call("a")
    own_s3.start()
    assert objects.get("a") == b"x"
    assert not objects.put("a", b"y")
