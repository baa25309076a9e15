"""Three brokers hold the same: what is acknowledged, shown and kept, whoever leads, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import BrokerId
from headrace.broker.partitions.intake import overtaking
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.records import Record
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import EARLIEST, batch, delete_records, fetch, offset_at, produce
from tests.broker.group_broker import until
from tests.broker.replication_world import ALL, World, replicating

OF_CONFIGS = 2
"""A topic, as a resource that has configs."""


def run(directory: Path, work: Callable[[World], Awaitable[None]], **configs: str) -> None:
    async def whole() -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        async with replicating(directory, {**BY_HAND, **named}) as world:
            await work(world)

    loops.run(whole())


async def write(world: World, topic: str, *values: bytes, acks: int = -1) -> int:
    """The offset at which the leader took them."""
    answer = await produce(await world.client(world.leader(topic)), topic, batch(*values), acks=acks)
    assert answer.error_code == 0
    return int(answer.base_offset)


async def write_later(world: World, topic: str, *values: bytes) -> asyncio.Task[Any]:
    """At acks=all, and once the leader has it."""
    leading = world.leading(topic)
    assert leading is not None
    end = leading.log.log_end_offset + len(values)
    client = await world.another_client(leading.isr.leader.node)
    answer = asyncio.create_task(produce(client, topic, batch(*values)))
    await until(lambda: leading.log.log_end_offset == end)
    return answer


# state that is equal everywhere


@pytest.mark.parametrize("journal", ["0", "201326592"])
def test_the_logs_of_all_are_the_same_to_the_byte(tmp_path: Path, journal: str) -> None:
    async def work(world: World) -> None:
        await world.make("t", segment_bytes="2000")
        for number in range(30):
            codec = list(Compression)[number % 3]
            records = batch(*[b"%d" % number * 50] * (1 + number % 4), codec=codec)
            answer = await produce(await world.client(world.leader("t")), "t", records, acks=[-1, 1][number % 2])
            assert answer.error_code == 0
        last = await write(world, "t", b"last")
        await world.until_end("t", last + 1)
        await world.stop(*ALL)
        first, *others = [world.files(broker, "t") for broker in ALL]
        assert len(first) > 2
        assert all(first.values())
        assert others == [first, first]

    run(tmp_path, work, log_journal_max_bytes=journal)


def test_who_leads_nothing_here_says_so(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", replicas=2)
        assert await write(world, "t", b"a") == 0
        for other in world.followers("t"):
            client = await world.client(other)
            assert (await produce(client, "t", batch(b"b"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await fetch(client, "t", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(tmp_path, work)


# acknowledgements and their moments


def test_acks_all_is_answered_once_every_member_has_flushed_and_not_before(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        slow, quick = world.followers("t")
        leading = world.leading("t")
        assert leading is not None
        with world.held(slow):
            answer = await write_later(world, "t", b"a", b"b")
            await until(lambda: world.copy(slow, "t").log.log_end_offset == 2)
            await until(lambda: leading.isr.leader.flushed_ends[BrokerId(quick)] == 2)
            await world.until_end("t", 2, leading.isr.leader.node, quick)
            await world.turns()
            assert not answer.done(), "one in-sync replica may lose it yet"
            assert leading.high_watermark == 0
            assert world.copy(slow, "t").log.flushed_end == 0
        assert (await answer).error_code == 0
        assert world.copy(slow, "t").log.flushed_end == 2
        assert await world.read("t") == [(0, b"a"), (1, b"b")]

    run(tmp_path, work)


def test_the_leaders_own_flush_counts_as_well(tmp_path: Path) -> None:
    """Followers copy what it has not flushed, and may be the first."""

    async def work(world: World) -> None:
        await world.make("t")
        leader = world.leader("t")
        with world.held(leader):
            answer = await write_later(world, "t", b"a")
            await world.until_end("t", 1, *world.followers("t"))
            await world.turns()
            assert not answer.done()
            assert await world.read("t") == []
        assert (await answer).error_code == 0

    run(tmp_path, work)


def test_acks_one_is_answered_at_once_and_is_not_shown_before_it_is_replicated(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        one, other = world.followers("t")
        with world.held(one, other):
            assert await write(world, "t", b"a", acks=1) == 0
            await until(lambda: world.copy(one, "t").log.log_end_offset == 1)
            await world.turns()
            assert await world.read("t") == []
            assert (await offset_at(await world.client(world.leader("t")), "t", -1)).offset == 0
        await world.committed("t", 1)
        assert await world.read("t") == [(0, b"a")]

    run(tmp_path, work)


def test_who_waits_in_vain_for_a_leader_that_the_controller_does_not_hear_is_sent_to_look_for_another(
    tmp_path: Path,
) -> None:
    async def work(world: World) -> None:
        await world.make("t", min_insync_replicas="3")
        leading = world.leading("t")
        assert leading is not None
        partitions = world.partitions(leading.isr.leader.node)
        slow, other = world.followers("t")
        with world.held(slow):
            answer = await write_later(world, "t", b"waits")
            partitions.on_contact(False)
            await world.turns()
            assert not answer.done(), "it may only just have come"
            partitions.on_contact(True)
            partitions.on_contact(False)
            await world.turns()
            assert not answer.done()
            partitions.on_contact(False)
            assert (await answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await write(world, "t", b"all have it") == 1, "it is acknowledged all the same"
        await world.fence(other)
        client = await world.client(leading.isr.leader.node)
        assert (await produce(client, "t", batch(b"none"))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        partitions.on_contact(True)
        assert (await produce(client, "t", batch(b"none"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS

    run(tmp_path, work)


def test_a_report_that_commits_tells_of_too_few_copies(tmp_path: Path) -> None:
    """The last copy that is in sync reports an append that was taken when there were enough."""

    async def work(world: World) -> None:
        await world.make("t", min_insync_replicas="3")
        assert await write(world, "t", b"three are enough") == 0
        one, other = world.followers("t")
        with world.held(one, other):
            answer = await write_later(world, "t", b"waits")
            await world.fence(one)
            await world.turns()
            assert not answer.done(), "the other has not flushed it"
        assert (await answer).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    run(tmp_path, work)


def test_too_few_in_sync_replicas_take_nothing_at_acks_all(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", min_insync_replicas="2")
        one, other = world.followers("t")
        leader = await world.client(world.leader("t"))
        await world.fence(one)
        assert await write(world, "t", b"two are enough") == 0
        with world.held(other):
            answer = await write_later(world, "t", b"waits")
            await world.fence(other)
            assert (await answer).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        refused = await produce(leader, "t", batch(b"none"))
        assert (refused.error_code, refused.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        assert await write(world, "t", b"anyhow", acks=1) == 2
        await world.unfence(other)
        await world.in_sync("t", 2)
        assert await write(world, "t", b"again") == 3
        assert [offset for offset, _ in await world.read("t")] == [0, 1, 2, 3]

    run(tmp_path, work)


def test_who_waits_longer_than_he_said_is_told_so_and_the_batch_is_there_once_all_have_it(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        one, _ = world.followers("t")
        leader = await world.client(world.leader("t"))
        with world.held(one):
            answer = await produce(leader, "t", batch(b"a"), timeout_ms=50)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert await world.read("t") == []
        await world.committed("t", 1)
        assert await world.read("t") == [(0, b"a")], "nobody was told that it is not, and it is not taken back"
        assert await write(world, "t", b"b") == 1

    run(tmp_path, work)


def test_what_waits_when_the_leader_is_deposed_is_refused(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        one, other = world.followers("t")
        with world.held(one, other):
            answers = [await write_later(world, "t", b"%d" % number) for number in range(3)]
            await world.cluster.fence(world.leader("t"))
            codes = [(await answer).error_code for answer in answers]
            assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3

    run(tmp_path, work)


def test_who_has_gone_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    """Its connection breaks, and only then is it taken out of the ISR, with all that there is flushed."""

    async def work(world: World) -> None:
        await world.make("t")
        await write(world, "t", b"a")
        await world.until_end("t", 1)
        gone = world.followers("t")[0]
        leading = world.leading("t")
        assert leading is not None
        await until(lambda: leading.isr.leader.flushed_ends[BrokerId(gone)] == 1)
        followers = world.cluster.brokers[leading.isr.leader.node].parts.replication.followers
        await world.cluster.brokers[gone].parts.replication.copying.stop()
        await until(lambda: BrokerId(gone) not in followers._sessions)
        await world.fence(gone)
        assert gone not in leading.isr.leader.isr
        assert leading.isr.leader.proposed is None

    run(tmp_path, work)


# the next leader


def test_what_is_acknowledged_outlives_every_leader(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        expected: list[tuple[int, bytes | None]] = []
        led = set()
        for turn in range(4):
            leader = world.leader("t")
            led.add(leader)
            for number in range(5):
                value = b"%d.%d" % (turn, number)
                expected.append((await write(world, "t", value), value))
            await world.fence(leader)
            refused = await produce(await world.client(leader), "t", batch(b"late"))
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await world.committed("t", len(expected))
            assert await world.read("t") == expected
            await world.unfence(leader)
            await world.in_sync("t")
        assert [offset for offset, _ in expected] == list(range(20))
        assert len(led) > 1

    run(tmp_path, work)


def test_who_was_away_catches_up_and_is_in_sync_again(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        away = world.followers("t")[0]
        await write(world, "t", b"before")
        await world.stop(away)
        last = await write(world, "t", *[b"meanwhile"] * 50)
        assert away not in world.image("t").isr
        await world.cluster.start(away)
        await world.unfence(away)
        await world.in_sync("t")
        assert world.role(away, "t").log.flushed_end == last + 50
        assert await write(world, "t", b"after") == 51
        await world.stop(*ALL)
        assert world.files(1, "t") == world.files(2, "t") == world.files(3, "t")

    run(tmp_path, work)


async def left_behind(world: World, topic: str) -> int:
    """The leader, deposed, with two records that nobody else has; the next leader has others in their place."""
    old = world.leader(topic)
    for follower in world.followers(topic):
        world.cluster.brokers[follower].parts.replication.copying.drop(world.key(topic))  # until the next epoch
    assert await write(world, topic, b"lost 1", acks=1) == 1
    assert await write(world, topic, b"lost 2", acks=1) == 2
    await world.until_end(topic, 3, old)
    return old


@pytest.mark.parametrize("values", [1, 5])
def test_what_a_deposed_leader_alone_has_is_cut(tmp_path: Path, values: int) -> None:
    """Flushed or not, above the high watermark: by the epochs."""

    async def work(world: World) -> None:
        await world.make("t")
        await write(world, "t", b"kept")
        await world.until_end("t", 1)
        old = await left_behind(world, "t")
        await world.fence(old)
        new = world.leader("t")
        assert new != old
        expected: list[tuple[int, bytes | None]] = [(0, b"kept")]
        expected += [(await write(world, "t", b"%d" % number), b"%d" % number) for number in range(values)]
        await world.unfence(old)
        await world.in_sync("t")
        assert world.leader("t") == new
        await world.committed("t", 1 + values)
        assert await world.read("t") == expected
        assert world.role(old, "t").log.log_end_offset == 1 + values
        await world.stop(*ALL)
        assert world.files(1, "t") == world.files(2, "t") == world.files(3, "t")

    run(tmp_path, work)


def test_who_never_came_back_as_a_follower_before_it_died_is_cut_as_well(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        await write(world, "t", b"kept")
        await world.until_end("t", 1)
        old = await left_behind(world, "t")
        await world.stop(old)
        assert await write(world, "t", b"new") == 1
        await world.cluster.start(old)
        await world.unfence(old)
        await world.in_sync("t")
        assert await world.read("t") == [(0, b"kept"), (1, b"new")]
        await world.stop(*ALL)
        assert world.files(1, "t") == world.files(2, "t") == world.files(3, "t")

    run(tmp_path, work)


# deletions


def test_records_that_are_deleted_go_everywhere(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        for number in range(5):
            await write(world, "t", b"%d" % number)
        (deleted,) = await delete_records(await world.client(world.leader("t")), "t", [3])
        assert (deleted.error_code, deleted.low_watermark) == (0, 3)
        for broker in ALL:
            await until(lambda broker=broker: world.role(broker, "t").log.log_start_offset == 3)  # type: ignore[misc]
        old = world.leader("t")
        await world.fence(old)
        earliest = await offset_at(await world.client(world.leader("t")), "t", EARLIEST)
        assert (earliest.error_code, earliest.offset) == (0, 3)
        await world.committed("t", 5)
        assert await world.read("t") == [(3, b"3"), (4, b"4")]

    run(tmp_path, work)


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_copy_is_begun_anew_where_the_leader_has_deleted_what_comes_next(tmp_path: Path, epochs: int) -> None:
    async def work(world: World) -> None:
        await world.make("t", min_insync_replicas="1")
        away = world.followers("t")[0]
        assert await write(world, "t", b"old") == 0
        await world.until_end("t", 1)
        await world.stop(away)
        for _ in range(epochs):
            leader = world.leader("t")
            await world.fence(leader)
            await write(world, "t", b"by another leader")
            await world.unfence(leader)
            await world.in_sync("t", 2)
        for _ in range(6):
            last = await write(world, "t", b"gone")
        kept = await write(world, "t", b"kept")
        (deleted,) = await delete_records(await world.client(world.leader("t")), "t", [last + 1])
        assert (deleted.error_code, deleted.low_watermark) == (0, kept)
        await world.cluster.start(away)
        await world.unfence(away)
        await world.in_sync("t")
        copied = world.role(away, "t").log
        assert (copied.log_start_offset, copied.flushed_end) == (kept, kept + 1)
        while world.leader("t") != away:
            await world.fence(world.leader("t"))
        assert await write(world, "t", b"led by it", acks=1) == kept + 1
        assert (await fetch(await world.client(away), "t", kept - 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(tmp_path, work)


def test_a_topic_that_is_deleted_goes_everywhere(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await world.make("other")
        await write(world, "t", b"a")
        await world.until_end("t", 1)
        one, other = world.followers("t")
        with world.held(one):
            answer = await write_later(world, "t", b"waits")
            request = DeleteTopicsRequest(topics=(DeleteTopicState(name="t"),), timeout_ms=10_000)
            deleting = asyncio.create_task((await world.another_client(other)).ask(6, request))
            assert (await answer).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await deleting).responses[0].error_code == 0
        await world.cluster.agree()
        for broker in ALL:
            await world.cluster.settled(broker)
            assert [role.topic for role in world.partitions(broker).replicas] == ["other"]
            assert not (world.cluster.data(broker) / "logs" / "t-0").exists(), "what it becomes is removed by and by"
        assert await write(world, "other", b"goes on") == 0

    run(tmp_path, work)


# the followers' knowledge


def test_a_duplicate_is_told_as_that_by_the_next_leader(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        producer = (await (await world.client(1)).ask(4, InitProducerIdRequest(None))).producer_id

        def sent(sequence: int) -> bytes:
            records = [Record(at, 1_700_000_000_000, None, b"%d" % (sequence + at)) for at in range(2)]
            return encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)

        for sequence in (0, 2, 4):
            answer = await produce(await world.client(world.leader("t")), "t", sent(sequence))
            assert (answer.error_code, answer.base_offset) == (0, sequence)
        for turn in (6, 8):
            old = world.leader("t")
            await world.fence(old)
            client = await world.client(world.leader("t"))
            for sequence in (2, turn - 2):
                again = await produce(client, "t", sent(sequence))
                assert (again.error_code, again.base_offset) == (0, sequence), "it has it"
            skipped = await produce(client, "t", sent(turn + 2))
            assert skipped.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            answer = await produce(client, "t", sent(turn))
            assert (answer.error_code, answer.base_offset) == (0, turn)
            await world.unfence(old)
            await world.in_sync("t")

    run(tmp_path, work)


def test_a_change_of_configuration_reaches_every_log(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        resource = AlterConfigsResource(OF_CONFIGS, "t", (AlterableConfig("segment.bytes", "4096"),))
        answer = await (await world.client(1)).ask(2, AlterConfigsRequest(resources=(resource,)))
        assert answer.responses[0].error_code == 0
        await world.cluster.agree()
        assert {world.role(broker, "t").log.config.segment_bytes for broker in ALL} == {4096}

    run(tmp_path, work)


# many


def led_by(image: MetadataImage) -> dict[int, int]:
    topic = image.topic("t")
    assert topic is not None
    return {partition.index: partition.leader for partition in topic.partitions}


def test_a_thousand_partitions_are_led_again_when_a_broker_goes(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        count = 1000
        await world.make("t", partitions=count)
        assert sum(len(world.partitions(broker)) for broker in ALL) == count
        entries = list[tuple[int, int]]()

        def look(delta: ImageDelta) -> None:
            was, now = led_by(delta.before), led_by(delta.after)
            if was != now:
                entries.append((delta.after.index - delta.before.index, sum(was[each] != now[each] for each in was)))

        controller = world.cluster.controller
        (node,) = [each for each in ALL if world.cluster.brokers[each].parts is controller]
        victim = next(each for each in ALL if each != node)
        its = sum(leader == victim for leader in led_by(world.cluster.image(node)).values())
        world.cluster.brokers[node].observe(look)
        controller.cluster.controller.on_peer_dead(BrokerId(victim))
        await world.cluster.until(node, lambda image: victim not in led_by(image).values())
        assert its > 300
        assert entries == [(1, its)], "all of them in one entry"
        await world.carried_out()
        topic = world.cluster.image(1).topic("t")
        assert topic is not None
        for partition in topic.partitions:
            assert partition.leader != victim
            assert partition.isr == tuple(each for each in partition.replicas if each != victim)
            leading = world.leading("t", partition.index)
            assert leading is not None
            assert (leading.isr.leader.node, leading.leader_epoch) == (partition.leader, partition.leader_epoch)
        for index in range(0, count, 100):
            client = await world.client(world.leader("t", index))
            assert (await produce(client, "t", batch(b"a"), partition=index)).error_code == 0
        await world.unfence(victim)
        for index in range(count):
            await world.in_sync("t", index=index)

    run(tmp_path, work)


def test_a_batch_that_comes_before_others_which_the_next_leader_refused_is_to_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They came before it led. Told of a gap, librdkafka would begin another epoch, and what is in the log would be
    there twice."""

    async def work(world: World) -> None:
        await world.make("t")
        producer = (await (await world.client(1)).ask(4, InitProducerIdRequest(None))).producer_id

        async def send(sequence: int) -> int:
            records = [Record(0, 1_700_000_000_000, None, b"%d" % sequence)]
            batch = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)
            return int((await produce(await world.client(world.leader("t")), "t", batch)).error_code)

        assert [await send(0), await send(1)] == [0, 0]
        await world.fence(old := world.leader("t"))
        assert await send(3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await send(1), await send(2), await send(3)] == [0, 0, 0], "all of them again"
        assert await send(5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "it has overtaken none"
        await world.unfence(old)
        await world.in_sync("t")
        monkeypatch.setattr(overtaking, "OVERTAKING_MS_MAX", 0)
        await world.fence(world.leader("t"))
        assert await send(5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "what came too early has come again by now"

    run(tmp_path, work)
