"""The client's parts that need no connection: addresses, backoff, the partitioner, errors."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.net.client.errors import ConnectionLostError, GaveUpError, RefusedError, check
from headrace.net.client.partitioner import murmur2, partition_of
from headrace.net.client.retry import Backoff, retried
from headrace.wire.errors import ErrorCode


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(data: bytes, expected: int) -> None:
    """The vectors of Kafka's own test of `Utils.murmur2`, as signed ints."""
    assert murmur2(data) == expected % (1 << 32)


@given(st.binary(max_size=200), st.integers(1, 5000))
def test_a_key_has_a_partition_that_exists(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


@given(st.integers(1, 100), st.integers(1, 1000), st.integers(1, 100_000))
def test_pauses_grow_and_are_bounded(failures: int, first_ms: int, longest_ms: int) -> None:
    backoff = Backoff(first_ms=first_ms, longest_ms=longest_ms)
    assert backoff.pause_ms(failures) <= backoff.pause_ms(failures + 1) <= longest_ms
    assert backoff.pause_ms(1) == min(first_ms, longest_ms)


@given(st.integers(1, 6), st.integers(0, 8))
async def test_what_may_heal_is_tried_so_often_and_no_more(attempts_max: int, failures: int) -> None:
    tries = 0

    async def action() -> str:
        nonlocal tries
        tries += 1
        if tries <= failures:
            raise ConnectionLostError("gone.")
        return "done"

    backoff = Backoff(attempts_max=attempts_max, first_ms=0, longest_ms=0)
    if failures < attempts_max:
        assert await retried(action, backoff) == "done"
        assert tries == failures + 1
    else:
        with pytest.raises(GaveUpError, match=r"gone; gave up after \d tries\."):
            await retried(action, backoff)
        assert tries == attempts_max


async def test_what_no_pause_heals_is_not_tried_again() -> None:
    tries = 0

    async def action() -> None:
        nonlocal tries
        tries += 1
        check(ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'a b'")

    with pytest.raises(RefusedError):
        await retried(action, Backoff(first_ms=0))
    assert tries == 1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 31_999])
def test_a_refusal_is_one_sentence_that_names_its_subject(code: int) -> None:
    with pytest.raises(RefusedError) as caught:
        check(code, "Topic 'orders'")
    text = str(caught.value)
    assert text.startswith("Topic 'orders': ")
    assert text.endswith(").")
    assert "\n" not in text


async def test_a_retried_action_can_be_cancelled_in_its_pause() -> None:
    async def action() -> None:
        raise ConnectionLostError("gone.")

    task = asyncio.create_task(retried(action, Backoff(first_ms=60_000, longest_ms=60_000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
