"""The active controller's own decisions about leaders, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch
from headrace.broker.cluster import elector
from headrace.broker.cluster.controller_role import ControllerRole
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.elector import LOST, OFFLINE, ONLINE, Elector
from headrace.controller.brokers import fence_broker, unfence_broker
from headrace.metadata.events import ConfigChanged, LeaderChanged
from headrace.metadata.image import MetadataImage
from headrace.sim.loop import VirtualLoop
from tests.broker.cluster.test_driver import NODE, commit, make
from tests.controller.test_brokers import TOPIC, fence, register, state, unfence
from tests.controller.test_leaders import both_in_sync, led, many, three, with_isr
from tests.storage.lossy_disk import LossyDisk

EVERY_MINUTE = {"leader.imbalance.check.interval.seconds": "60"}
UNCLEAN = ConfigChanged(topic_id=TOPIC, changes={"unclean.leader.election.enable": "true"})


def play(
    image: MetadataImage,
    story: Callable[[MetadataDriver, Elector], Awaitable[None]],
    configs: Mapping[str, str] = EVERY_MINUTE,
    node: BrokerId = NODE,
) -> None:
    """The story of a sole voter that decides on this image from time 0 on."""

    def on_bug(error: BaseException) -> None:
        raise AssertionError from error

    async def main() -> None:
        metadata = make(LossyDisk(Random(1)))
        await metadata.start()
        await metadata.submit(commit(tuple(image.snapshot())))
        made = Elector(node=node, configs=configs, metadata=metadata, on_bug=on_bug)
        role = ControllerRole(metadata, [made])
        role.start()
        try:
            await story(metadata, made)
        finally:
            role.stop()
            await metadata.stop()

    loop = VirtualLoop(Random(7))
    try:
        loop.run_until_complete(main())
    finally:
        loop.workers.close()
        loop.close()


def test_leaders_go_back_once_an_interval_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elector, "LEADERS_MOVED_PER_ROUND_MAX", 2)

    async def story(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(59)
        assert led(metadata.image) == [3, 3, 3, 3, 3]
        await asyncio.sleep(1.5)
        assert led(metadata.image) == [2, 2, 3, 3, 3]
        await asyncio.sleep(1)
        assert led(metadata.image) == [2, 2, 2, 2, 3]
        await asyncio.sleep(1)
        assert led(metadata.image) == [2, 2, 2, 2, 2]
        index = metadata.image.index
        await asyncio.sleep(600)
        assert metadata.image.index == index, "nothing is decided where there is nothing to do"

    play(many(5), story)


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_balanced_where_that_is_not_wanted_or_by_who_is_not_the_controller(stopped: bool) -> None:
    async def story(metadata: MetadataDriver, made: Elector) -> None:
        if stopped:
            made.end()
        await asyncio.sleep(1_000)
        assert led(metadata.image) == [3]

    play(many(1), story, EVERY_MINUTE if stopped else {**EVERY_MINUTE, "auto.leader.rebalance.enable": "false"})


def test_an_interval_that_is_made_shorter_holds_at_once() -> None:
    async def story(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(70)
        assert led(metadata.image) == [3]
        shorter = ConfigChanged(changes={"leader.imbalance.check.interval.seconds": "75"})
        await metadata.submit(commit([shorter]))
        await asyncio.sleep(4)
        assert led(metadata.image) == [3]
        await asyncio.sleep(2)
        assert led(metadata.image) == [2]

    play(many(1), story, {})


def test_a_broker_leads_again_only_once_it_has_stayed_for_an_interval() -> None:
    """A broker to which leadership goes and comes back within a moment can lose clients for ever."""

    async def story(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(50)
        two = metadata.image.brokers[BrokerId(2)]
        await metadata.submit(lambda image: fence_broker(image, broker_id=two.id, broker_epoch=two.epoch))
        await metadata.submit(lambda image: unfence_broker(image, broker_id=two.id, broker_epoch=two.epoch))
        await metadata.submit(both_in_sync)
        await asyncio.sleep(59)
        assert led(metadata.image) == [3]
        await asyncio.sleep(2)
        assert led(metadata.image) == [2], "and not an interval later"

    play(many(1), story)


def test_a_replica_that_is_not_in_sync_leads_at_once_where_its_topic_allows_it() -> None:
    """When that is configured, when the last one in sync is gone, and when such a replica comes."""

    async def configured(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(1)
        assert state(metadata.image)[0] == NO_LEADER
        await metadata.submit(commit([UNCLEAN]))
        await asyncio.sleep(0.5)
        assert state(metadata.image) == (3, 2, (3,))

    async def gone(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(1)
        epoch = metadata.image.brokers[BrokerId(2)].epoch
        await metadata.submit(lambda image: fence_broker(image, broker_id=BrokerId(2), broker_epoch=epoch))
        await asyncio.sleep(0.5)
        assert state(metadata.image) == (3, 2, (3,))

    async def came(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(1)
        epoch = metadata.image.brokers[BrokerId(3)].epoch
        await metadata.submit(lambda image: unfence_broker(image, broker_id=BrokerId(3), broker_epoch=epoch))
        await asyncio.sleep(0.5)
        assert state(metadata.image) == (3, 2, (3,))

    in_sync = with_isr(three(), 2)
    play(fence(in_sync, 2), configured)
    play(in_sync.replay([UNCLEAN]), gone)
    play(fence(fence(fence(in_sync, 3), 1), 2).replay([UNCLEAN]), came)


def test_what_is_lost_is_told_by_the_broker_that_leads_then_and_offline_by_the_controller() -> None:
    async def story(metadata: MetadataDriver, _: Elector) -> None:
        epoch = metadata.image.brokers[BrokerId(2)].epoch
        await metadata.submit(lambda image: fence_broker(image, broker_id=BrokerId(2), broker_epoch=epoch))
        await asyncio.sleep(0.5)
        assert state(metadata.image) == (3, 2, (3,))

    for node, told in ((3, [OFFLINE, LOST]), (1, [OFFLINE])):
        with capture_logs() as lines:
            play(with_isr(three(), 2).replay([UNCLEAN]), story, node=BrokerId(node))
        errors = [line for line in lines if line["log_level"] == "error"]
        assert [line["event"] for line in errors] == told
        assert {(line["topic"], line["count"], *line["partitions"]) for line in errors} == {("t", 1, 0)}


def test_a_lost_disk_that_leads_is_told_and_an_election_of_one_in_sync_is_not() -> None:
    async def lost(metadata: MetadataDriver, _: Elector) -> None:
        await metadata.submit(commit([UNCLEAN]))
        await asyncio.sleep(0.5)
        assert state(metadata.image)[::2] == (2, (2,))

    async def moved(metadata: MetadataDriver, _: Elector) -> None:
        await asyncio.sleep(62)
        assert led(metadata.image) == [2]

    wiped = unfence(register(fence(three((2,)), 2), 2, directory=9, unfenced=False), 2)
    for image, story, told in ((wiped, lost, [LOST]), (many(1), moved, [])):
        with capture_logs() as lines:
            play(image, story, node=BrokerId(2))
        assert [line["event"] for line in lines if line["log_level"] == "error"] == told


def test_a_replica_that_joins_the_isr_and_leads_in_one_entry_has_lost_nothing() -> None:
    """As the last entry of a reassignment has it."""

    async def story(metadata: MetadataDriver, _: Elector) -> None:
        (topic,) = metadata.image.topics.values()
        (known,) = topic.partitions
        assert BrokerId(3) not in known.isr
        changed = LeaderChanged(
            topic_id=topic.id,
            partition=known.index,
            leader=BrokerId(3),
            leader_epoch=LeaderEpoch(known.leader_epoch + 1),
            partition_epoch=PartitionEpoch(known.partition_epoch + 1),
            isr=(BrokerId(3), BrokerId(2)),
        )
        await metadata.submit(commit([changed]))
        await asyncio.sleep(0.5)
        assert state(metadata.image)[0] == 3

    with capture_logs() as lines:
        play(with_isr(three(), 2), story, node=BrokerId(3))
    assert not [line for line in lines if line["log_level"] == "error"]


def test_what_nobody_leads_is_counted_by_every_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(metadata: MetadataDriver, made: Elector) -> None:
        assert made.offline_partitions == 0
        for broker, unwilling in ((2, 0), (3, 3)):
            known = metadata.image.brokers[BrokerId(broker)]
            await metadata.submit(
                lambda image, known=known: fence_broker(image, broker_id=known.id, broker_epoch=known.epoch)  # type: ignore[misc]
            )
            assert made.offline_partitions == unwilling
        await metadata.submit(lambda image: unfence_broker(image, broker_id=known.id, broker_epoch=known.epoch))
        assert made.offline_partitions == 0

    for node in (NODE, BrokerId(9)):
        with capture_logs() as lines:
            play(many(3), story, node=node)
        assert [line["event"] for line in lines if line["event"] in (OFFLINE, ONLINE)] == [OFFLINE, ONLINE]


def test_many_that_go_offline_are_told_in_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elector, "PARTITIONS_TOLD_MAX", 2)

    async def story(metadata: MetadataDriver, _: Elector) -> None:
        for broker in (2, 3):
            known = metadata.image.brokers[BrokerId(broker)]
            await metadata.submit(
                lambda image, known=known: fence_broker(image, broker_id=known.id, broker_epoch=known.epoch)  # type: ignore[misc]
            )

    for topics_max, told in ((0, {"more_topics": 1}), (1, {"topic": "m", "partitions": [0, 1], "count": 3})):
        monkeypatch.setattr(elector, "TOPICS_TOLD_MAX", topics_max)
        with capture_logs() as lines:
            play(many(3), story)
        (line,) = [line for line in lines if line["log_level"] == "error"]
        assert line == {"event": OFFLINE, "log_level": "error", **told}
