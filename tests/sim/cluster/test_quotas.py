"""Client quotas (KIP-13, KIP-124, KIP-219) on virtual time.

A client beyond its quota is told at once for how long it must wait. It is held up for that long, and so gets its rate
and no more. Nobody else notices.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.sim.client import Client
from headrace.sim.cluster.brokers import CONFIGS, BrokerPrograms
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.guard import guarded
from headrace.sim.loop import VirtualLoop
from headrace.sim.run import close
from headrace.wire.apis import ApiKey
from headrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.broker.data_path import batch, produce_request

RATE = 20_000
BATCH = batch(bytes(10_000))
SECONDS = 60


class Quick(Client):
    """A client that waits for as long as it takes, and does not heed what it is told of throttles."""

    async def answer(self, future: asyncio.Future[Any]) -> Any:
        return await future


class World:
    """One broker, with a topic of one partition."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.world = ClusterWorld(loop, 1, "quotas ")
        programs = BrokerPrograms([1], CONFIGS)
        self.host = Host(self.world, 1, programs)
        programs.birth([self.host])
        self.admin = self.client("admin")

    def client(self, name: str) -> Quick:
        return Quick(name, (address_of(1), PORT))

    async def begin(self) -> None:
        self.host.boot()
        while not self.host.serves:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        late = CreatableTopicConfig("message.timestamp.after.max.ms", str(1 << 60))
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=(late,))
        (made,) = (await self.admin.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 9_000))).topics
        assert made.error_code == 0, made.error_message

    async def limit(self, client: str | None, **quotas: float | None) -> None:
        ops = tuple(OpData(key, value or 0.0, value is None) for key, value in quotas.items())
        entry = RequestEntryData((RequestEntityData("client-id", client),), ops)
        request = AlterClientQuotasRequest(entries=(entry,))
        (told,) = (await self.admin.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, request)).entries
        assert told.error_code == 0, told.error_message

    async def produce(self, client: Client) -> int:
        """One batch; the throttle that was told."""
        answer = await client.call(ApiKey.PRODUCE, 9, produce_request("t", BATCH))
        assert answer.responses[0].partition_responses[0].error_code == 0
        return int(answer.throttle_time_ms)

    async def fetch_in(self, client: Client, session: int, epoch: int, offset: int) -> FetchResponse:
        """The answer to a fetch of a session."""
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            session_id=session,
            session_epoch=epoch,
            topics=(FetchTopic(topic="t", partitions=(wanted,)),),
        )
        answer = await client.call(ApiKey.FETCH, 11, request)
        assert isinstance(answer, FetchResponse)
        assert answer.error_code == 0
        return answer

    async def fetch(self, client: Client, offset: int = 0, bytes_max: int = 1 << 20) -> tuple[int, int]:
        """Bytes that came, and the throttle that was told."""
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
        request = FetchRequest(
            max_wait_ms=0, max_bytes=bytes_max, topics=(FetchTopic(topic="t", partitions=(wanted,)),)
        )
        answer = await client.call(ApiKey.FETCH, 11, request)
        assert answer.error_code == 0
        found = [partition for topic in answer.responses for partition in topic.partitions]
        return sum(len(partition.records or b"") for partition in found), int(answer.throttle_time_ms)


@pytest.fixture
def play() -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run(work: Callable[[World], Awaitable[None]]) -> None:
        loop = VirtualLoop(random.Random(1))
        world = World(loop)

        async def whole() -> None:
            await world.begin()
            await work(world)

        with guarded():
            try:
                loop.run_until_complete(asyncio.wait_for(whole(), 36_000))
            finally:
                close(loop)
        assert loop.failures == []
        assert world.world.problems == []

    return run


Play = Callable[[Callable[[World], Awaitable[None]]], None]


async def as_fast_as_it_can(world: World, work: Callable[[], Awaitable[int]]) -> int:
    """The work that was done in so many seconds."""
    done, end = 0, world.loop.time() + SECONDS
    while world.loop.time() < end:
        done += await work()
    return done


def test_a_producer_gets_its_rate_and_no_more(play: Play) -> None:
    async def work(world: World) -> None:
        await world.limit("greedy", producer_byte_rate=RATE)
        client = world.client("greedy")

        async def produce() -> int:
            await world.produce(client)
            return len(BATCH)

        done = await as_fast_as_it_can(world, produce)
        assert RATE * SECONDS * 0.9 < done < RATE * (SECONDS + 10) + 2 * len(BATCH), "and ten seconds' worth at first"

    play(work)


def test_a_consumer_gets_its_rate_and_no_more(play: Play) -> None:
    async def work(world: World) -> None:
        for _ in range(20):
            await world.produce(world.admin)
        await world.limit(None, consumer_byte_rate=RATE)
        client = world.client("greedy")
        empty = 0

        async def fetch() -> int:
            nonlocal empty
            size, wait_ms = await world.fetch(client, bytes_max=50_000)
            assert (size == 0) == (wait_ms > 0), "who is throttled gets nothing"
            empty += wait_ms > 0
            return size

        done = await as_fast_as_it_can(world, fetch)
        assert RATE * SECONDS * 0.8 < done < RATE * (SECONDS + 11) + 50_000
        assert empty > 5

    play(work)


def test_a_fetch_takes_no_more_than_its_quota_ever_allows_at_a_time(play: Play) -> None:
    async def work(world: World) -> None:
        for _ in range(60):
            await world.produce(world.admin)
        await world.limit(None, consumer_byte_rate=RATE)
        size, wait_ms = await world.fetch(world.client("greedy"))
        assert RATE * 9 < size <= RATE * 10
        assert wait_ms == 0

    play(work)


def test_a_batch_beyond_all_of_the_quota_comes_in_the_end(play: Play) -> None:
    """Where nothing else was used of it; on Kafka it never does."""

    async def work(world: World) -> None:
        await world.produce(world.admin)
        await world.limit("slow", consumer_byte_rate=100)
        client = world.client("slow")
        size, wait_ms = await world.fetch(client)
        assert size >= 10_000
        assert wait_ms == 11_000, "the longest that is told at a time"
        began = world.loop.time()
        while not (await world.fetch(client))[0]:
            assert world.loop.time() - began < 200
        assert world.loop.time() - began == pytest.approx(10_000 / 100 - 10, rel=0.05)

    play(work)


@pytest.mark.parametrize("times", [1.2, 1.4, 1.8, 2.0, 2.05])
def test_a_batch_of_somewhat_more_than_its_quota_allows_comes_again_and_again(play: Play, times: float) -> None:
    """Each refused attempt is itself no reason to refuse the next."""

    async def work(world: World) -> None:
        for each in (batch(b"small"), batch(bytes(round(1_000 * 10 * times)))):
            answer = await world.admin.call(ApiKey.PRODUCE, 9, produce_request("t", each))
            assert answer.responses[0].partition_responses[0].error_code == 0
        await world.limit("slow", consumer_byte_rate=1_000)
        client = world.client("slow")
        assert 0 < (await world.fetch(client, bytes_max=100))[0] < 100
        began = world.loop.time()
        for came in range(5):
            while not (await world.fetch(client, offset=1))[0]:
                assert world.loop.time() - began < 15 * times * (came + 1)
        assert world.loop.time() - began >= 0.9 * 4 * 10 * times - 10, "and no faster than its rate"

    play(work)


def test_a_session_whose_first_answer_was_emptied_takes_no_place(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.requests.fetch_sessions.FETCH_SESSIONS_MAX", 1)

    async def work(world: World) -> None:
        await world.produce(world.admin)
        await world.limit("slow", consumer_byte_rate=100)
        slow = world.client("slow")
        await world.fetch(slow)
        empty = await world.fetch_in(slow, 0, 0, 0)
        assert (empty.session_id, empty.responses) == (0, ())
        assert empty.throttle_time_ms > 0
        assert (await world.fetch_in(world.client("other"), 0, 0, 0)).session_id != 0

    play(work)


def test_what_an_emptied_answer_would_have_told_is_told_later(play: Play) -> None:
    async def work(world: World) -> None:
        slow = world.client("slow")
        began = await world.fetch_in(slow, 0, 0, 0)
        assert began.session_id != 0
        await world.produce(world.admin)
        await world.limit("slow", consumer_byte_rate=1_000)
        assert (await world.fetch(world.client("slow")))[1] > 0
        empty = await world.fetch_in(slow, began.session_id, 1, 0)
        assert (empty.session_id, empty.responses) == (began.session_id, ())
        await world.limit("slow", consumer_byte_rate=None)
        told = await world.fetch_in(slow, began.session_id, 2, 1)
        assert [part.high_watermark for topic in told.responses for part in topic.partitions] == [1]
        assert (await world.fetch_in(slow, began.session_id, 3, 1)).responses == (), "and once only"

    play(work)


def test_the_answer_comes_first_and_then_the_wait(play: Play) -> None:
    async def work(world: World) -> None:
        await world.limit("greedy", producer_byte_rate=1000)
        client, other = world.client("greedy"), world.client("other")
        began = world.loop.time()
        wait_ms = await world.produce(client)
        assert wait_ms == pytest.approx(len(BATCH) / 1000 * 1000 - 10_000, abs=300)
        wait_ms = await world.produce(client)
        assert wait_ms > 5_000
        assert world.loop.time() - began < 1.0, "the answer waits for nothing"
        began = world.loop.time()
        waiting = asyncio.ensure_future(world.produce(client))
        assert await world.produce(other) == 0
        assert world.loop.time() - began < 1.0, "nobody else is held up"
        await waiting
        assert world.loop.time() - began == pytest.approx(wait_ms / 1000, abs=1.0)

    play(work)


def test_one_connection_is_muted_and_another_of_the_same_client_is_told_too(play: Play) -> None:
    async def work(world: World) -> None:
        await world.limit("greedy", producer_byte_rate=1000)
        first, second = world.client("greedy"), world.client("greedy")
        for _ in range(2):
            await world.produce(first)
        assert await world.produce(second) > 10_000

    play(work)


def test_a_quota_that_is_removed_holds_nobody_up(play: Play) -> None:
    async def work(world: World) -> None:
        await world.limit("greedy", producer_byte_rate=1000)
        client = world.client("greedy")
        while not await world.produce(client):
            pass
        await world.limit("greedy", producer_byte_rate=None)
        await world.produce(client)  # the wait that it was told goes on
        began = world.loop.time()
        for _ in range(100):
            assert await world.produce(client) == 0
        assert world.loop.time() - began < 5

    play(work)


def test_a_stop_does_not_wait_for_who_is_muted(play: Play) -> None:
    async def work(world: World) -> None:
        await world.limit("greedy", producer_byte_rate=1000)
        client = world.client("greedy")
        await client.connect()
        sent = [client.send(ApiKey.PRODUCE, 9, produce_request("t", BATCH)) for _ in range(3)]
        assert (await sent[0]).throttle_time_ms > 0
        assert (await sent[1]).throttle_time_ms > 5_000
        began = world.loop.time()
        assert world.host.program is not None
        await world.host.program.stop()
        assert world.loop.time() - began < 4
        assert (await sent[2]).throttle_time_ms > 0, "what was received is answered"

    play(work)
