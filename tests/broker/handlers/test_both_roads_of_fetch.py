"""Both roads of fetch give the same answers: the short one, and the long one that has all the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.base.errors import CorruptData
from headrace.base.ids import TopicId
from headrace.base.ports import Random
from headrace.broker import parts
from headrace.broker.handlers import all_handlers, plain_fetch
from headrace.broker.kit.parking import ParkedFetch
from headrace.net.server.request_budget import RequestBudget
from headrace.storage.log.contents import Contents
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.data_path import batch, create, delete_records, produce
from tests.broker.group_broker import RawClient, running, until

VERSIONS = (9, 10, 11, 12, 13, 15, 17)


def nobody_waits(waiter: ParkedFetch, partitions: Iterable[Any]) -> bool:
    return not any(waiter in partition.fetches for partition in partitions)


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ParkedFetch, tuple[Any, ...]]]:
    """Every fetch that waits, with its partitions, once these know it."""
    found: list[tuple[ParkedFetch, tuple[Any, ...]]] = []
    park = ParkedFetch.__init__

    def noted(self: ParkedFetch, *args: Any, **kwargs: Any) -> None:
        park(self, *args, **kwargs)
        found.append((self, self._partitions))

    monkeypatch.setattr(ParkedFetch, "__init__", noted)
    return found


@asynccontextmanager
async def both(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RawClient, RawClient, list[bool]]]:
    """A client of a broker that has the short road, one of a broker that has not, and whether it was taken."""
    taken: list[bool] = []
    serve = plain_fetch._Road.serve

    def counted(self: Any, frame: memoryview, connection: Any) -> Any:
        answer = serve(self, frame, connection)
        taken.append(answer is not None)
        return answer

    monkeypatch.setattr(plain_fetch._Road, "serve", counted)
    async with AsyncExitStack() as stack, asyncio.timeout(150):
        short = await stack.enter_async_context(running(directory / "short"))
        with monkeypatch.context() as patch:
            patch.setattr(parts, "OFFERED", tuple(replace(handler, shortcuts=None) for handler in all_handlers()))
            long = await stack.enter_async_context(running(directory / "long"))
        clients = [await stack.enter_async_context(RawClient(bootstrap)) for bootstrap in (short, long)]
        for client in clients:
            monkeypatch.setattr("headrace.broker.handlers.create_topics.new_topic_id", _topic_ids())
            await create(client, "t", 3)
            await create(client, "other", 2)
            for round_ in range(3):
                for partition in range(2):
                    values = [b"%d" % round_ * size for size in (10, 3000 * partition, 1)]
                    assert (await produce(client, "t", batch(*values), partition=partition)).error_code == 0
            await produce(client, "other", batch(b"one"), partition=1)
            await delete_records(client, "t", [4])
        yield clients[0], clients[1], taken


def _topic_ids() -> Callable[[Random], TopicId]:
    """Topic ids that are equal on both brokers."""
    numbers = count(1)
    return lambda random: TopicId(UUID(int=next(numbers), version=4))


async def topic_ids(client: RawClient) -> dict[str, TopicId]:
    topics = tuple(MetadataRequestTopic(name=name) for name in ("t", "other"))
    return {each.name: each.topic_id for each in (await client.ask(12, MetadataRequest(topics=topics))).topics}


def wanted(*each: tuple[int, int], limit: int = 1 << 20, epoch: int = -1) -> tuple[FetchPartition, ...]:
    """Partition and offset."""
    return tuple(
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=limit, current_leader_epoch=epoch)
        for partition, offset in each
    )


def request(*topics: tuple[str, tuple[FetchPartition, ...]], **more: Any) -> FetchRequest:
    named = tuple(FetchTopic(topic=topic, partitions=partitions) for topic, partitions in topics)
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **more}
    return FetchRequest(topics=named, **fields)


def requests() -> Iterator[FetchRequest]:
    for offset in (-1, 0, 3, 4, 5, 6, 8, 9, 10):
        yield request(("t", wanted((0, offset))))
    for limit in (-1, 0, 1, 300, 4000, 7000):
        yield request(("t", wanted((1, 0), (0, 4), (2, 0), limit=limit)))
        yield request(("t", wanted((0, 4), (1, 0), (2, 0))), max_bytes=limit)
        yield request(("t", wanted((0, 5), (1, 3))), min_bytes=limit, max_wait_ms=1)
    yield request(("t", wanted((0, 4))), ("other", wanted((0, 0), (1, 0))), ("t", wanted((2, 0))))
    for epoch in (0, 1, 7):
        yield request(("t", wanted((0, 4), (1, 0), epoch=epoch)))
    yield request(("t", wanted((0, 4), (3, 0))))
    yield request(("t", wanted((0, 4), (-1, 0))))
    yield request(("gone", wanted((0, 0))), ("t", wanted((0, 4))))
    yield request(("t", wanted((0, 4), (1, 0), (0, 5))))
    yield request(("t", wanted((0, 4))), ("other", wanted((1, 0))), ("t", wanted((0, 5))))
    yield request(("t", wanted((0, 4))), isolation_level=1)
    yield request(("t", wanted((0, 9), (1, 9), (2, 0))), max_wait_ms=1)
    yield request()


@pytest.mark.parametrize("version", VERSIONS)
async def test_both_roads_answer_alike(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with both(tmp_path, monkeypatch) as (short, long, taken):
        ids = await topic_ids(short)
        assert ids == await topic_ids(long)
        for asked in requests():
            topics = [topic._replace(topic_id=ids.get(topic.topic, TopicId(topic.topic_id))) for topic in asked.topics]
            named = asked._replace(topics=tuple(topics))
            for _ in range(2):  # the second time from places that are remembered, and from memory
                assert bytes(await short.ask_undecoded(version, named)) == bytes(
                    await long.ask_undecoded(version, named)
                ), named
        assert taken.count(True) >= 40, "the short road is taken"
        assert taken.count(False) >= 10, "and left"


@pytest.mark.parametrize("version", [11, 17])
@pytest.mark.parametrize("event", ["append", "delete", "damage"])
async def test_both_roads_answer_alike_after_a_wait(
    version: int, event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parked: list[Any]
) -> None:
    """Also where the wait ends with an error: the short road then leaves the request to the long one."""
    async with both(tmp_path, monkeypatch) as (short, long, taken):
        ids = await topic_ids(short)
        asked = request(("t", wanted((0, 9), (2, 0))), ("other", wanted((1, 1))), max_wait_ms=30_000)
        asked = asked._replace(topics=tuple(topic._replace(topic_id=ids[topic.topic]) for topic in asked.topics))
        answers = []
        for client in (short, long):
            parked.clear()
            waiting = asyncio.ensure_future(client.ask_undecoded(version, asked))
            await until(lambda: len(parked) == 1)
            assert len(parked[0][1]) == 3
            with monkeypatch.context() as patch:
                if event == "damage":
                    patch.setattr(Contents, "read", _damaged)
                async with RawClient(client.address) as other:
                    if event == "delete":
                        await other.ask(4, DeleteTopicsRequest(topic_names=("other",), timeout_ms=9_000))
                    else:
                        await produce(other, "t", batch(b"news"), partition=2)
                answers.append(bytes(await waiting))
        assert answers[0] == answers[1]
        assert (b"news" in answers[0]) == (event == "append")
        assert taken == [True]


def _damaged(self: Contents, *args: Any, **kwargs: Any) -> memoryview:
    raise CorruptData("planted")


@pytest.mark.parametrize("version", [11, 17])
async def test_who_wants_more_than_an_answer_may_hold_is_not_kept_waiting(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Kafka, where no more is waited for than the request's most bytes."""
    async with both(tmp_path, monkeypatch) as (short, long, taken):
        ids = await topic_ids(short)
        asked = request(("t", wanted((0, 4))), min_bytes=2**31 - 1, max_bytes=1, max_wait_ms=2**31 - 1)
        asked = asked._replace(topics=tuple(topic._replace(topic_id=ids[topic.topic]) for topic in asked.topics))
        for client in (short, long):
            async with asyncio.timeout(150):
                assert (await client.ask(version, asked)).responses[0].partitions[0].records
        assert taken == [True]


@pytest.mark.parametrize("version", [11, 17])
async def test_of_a_reader_that_went_away_nothing_is_left(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parked: list[Any]
) -> None:
    async with both(tmp_path, monkeypatch) as (short, long, taken):
        ids = await topic_ids(short)
        asked = request(("t", wanted((0, 9), (2, 0))), max_wait_ms=2**31 - 1)
        asked = asked._replace(topics=tuple(topic._replace(topic_id=ids[topic.topic]) for topic in asked.topics))
        for client in (short, long):
            parked.clear()
            async with RawClient(client.address) as gone:
                gone.send(version, asked)
                await until(lambda: len(parked) == 1)
            ((waiter, partitions),) = parked
            assert len(partitions) == 2
            await until(partial(nobody_waits, waiter, partitions))
            assert waiter._timer.cancelled()
        assert taken == [True]


@pytest.mark.parametrize("version", [11, 17])
async def test_a_broker_that_stops_answers_who_waits(version: int, tmp_path: Path, parked: list[Any]) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(150):
        broker = await stack.enter_async_context(AsyncExitStack())
        client = await stack.enter_async_context(RawClient(await broker.enter_async_context(running(tmp_path))))
        await create(client, "t", 1)
        (topic,) = (await client.ask(12, MetadataRequest(topics=(MetadataRequestTopic(name="t"),)))).topics
        asked = request(("t", wanted((0, 0))), max_wait_ms=2**31 - 1)
        named = asked._replace(topics=(asked.topics[0]._replace(topic_id=topic.topic_id),))
        waiting = asyncio.ensure_future(client.ask(version, named))
        await until(lambda: bool(parked))
        await broker.aclose()
        assert (await waiting).responses[0].partitions[0].error_code == 0


async def test_where_slow_readers_leave_little_room_less_is_given_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not waited for: the bytes that are missing are there, and there is no room for them."""
    async with both(tmp_path, monkeypatch) as (short, long, taken):
        ask = request(("t", wanted((1, 0))), min_bytes=5_000, max_wait_ms=60_000)
        (whole,) = (await short.ask(12, ask)).responses[0].partitions
        monkeypatch.setattr(RequestBudget, "answer_bytes_max", 4_000)
        for client in (short, long):
            (given,) = (await client.ask(12, ask)).responses[0].partitions
            assert 0 < len(given.records) < 4_000 < len(whole.records)
        assert taken == [True, True]
        monkeypatch.setattr(RequestBudget, "answer_bytes_max", 1)
        for client in (short, long):
            (given,) = (await client.ask(12, ask)).responses[0].partitions
            assert len(given.records) > 1, "one batch, or nobody would get on"
