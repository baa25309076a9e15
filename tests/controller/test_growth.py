"""Partitions that lack replicas: who is added, in what order, and whom an operator is heeded by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given

from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex, TopicPartition
from headrace.controller.growth import grow_replicas
from headrace.controller.isr import IsrMember, IsrProposal, alter_isr
from headrace.controller.lacking import is_growing, lacks_replicas
from headrace.controller.leaders import balance_leaders
from headrace.controller.reassignments import Reassignment, reassign_partitions
from headrace.controller.removal import remove_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.configs import topic_config
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import TopicImage
from tests.controller.test_brokers import TOPIC, fence, register, with_topic
from tests.controller.test_reassignments import applied
from tests.metadata.histories import Entry, histories


def made(image: MetadataImage, partitions: int = 1, *, factor: int = -1, desired: int | None = None) -> MetadataImage:
    """With the topic t."""
    topic = NewTopic(
        topic_id=TOPIC,
        name="t",
        partitions=partitions,
        replication_factor=factor,
        configs={},
        desired_replicas=desired,
    )
    return applied(image, create_topics(image, [topic], broker_configs={}).events)


def topic_of(image: MetadataImage) -> TopicImage:
    return image.topics[TOPIC]


def keys(image: MetadataImage) -> list[TopicPartition]:
    return [TopicPartition(topic.id, one.index) for topic, one in image.all_partitions()]


def grown(image: MetadataImage, among: Sequence[TopicPartition] | None = None) -> MetadataImage:
    return applied(image, grow_replicas(image, keys(image) if among is None else among).events)


def joined(image: MetadataImage, among: Sequence[TopicPartition] | None = None) -> MetadataImage:
    """Every replica (of these) has caught up, one partition after the other."""
    for topic, one in list(image.all_partitions()):
        if among is not None and TopicPartition(topic.id, one.index) not in among:
            continue
        members = tuple(
            IsrMember(broker_id=replica, broker_epoch=image.brokers[replica].epoch)
            for replica in (one.leader, *one.replicas)
            if one.leader != NO_LEADER and not image.brokers[replica].fenced
        )
        proposal = IsrProposal(
            topic_id=topic.id,
            partition=one.index,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            isr=tuple(dict.fromkeys(members)),
        )
        if one.leader != NO_LEADER:
            epoch = image.brokers[one.leader].epoch
            decision = alter_isr(image, broker_id=one.leader, broker_epoch=epoch, proposals=[proposal])
            image = applied(image, decision.events)
    return image


def least_in_sync(image: MetadataImage) -> int:
    return topic_config(image, topic_of(image), {}).min_insync_replicas


def reassigned(image: MetadataImage, *wishes: tuple[int, tuple[int, ...] | None]) -> MetadataImage:
    named = [
        Reassignment(
            topic="t",
            partition=PartitionIndex(partition),
            replicas=None if replicas is None else tuple(map(BrokerId, replicas)),
        )
        for partition, replicas in wishes
    ]
    decision = reassign_partitions(image, named)
    assert decision.result == (None,) * len(wishes)
    return applied(image, decision.events)


ALONE = register(EMPTY_IMAGE, 1)


def test_a_topic_that_one_broker_made_gets_its_replicas_as_brokers_come() -> None:
    image = made(ALONE)
    assert topic_of(image).desired_replicas == 3
    assert grown(image) == image.replay((), index=image.index + 1), "nobody else is there"
    image = grown(register(image, 2))
    (one,) = topic_of(image).partitions
    assert (one.leader, one.isr, one.adding) == (1, (1,), (2,)), "who is added is not in sync yet"
    assert sorted(one.replicas) == [1, 2]
    image = grown(register(image, 3))
    assert sorted(topic_of(image).partitions[0].replicas) == [1, 2], "what is under way is finished first"
    image = joined(grown(joined(image)))
    (one,) = topic_of(image).partitions
    assert (one.leader, sorted(one.isr), one.adding) == (1, [1, 2, 3], ())


def test_acks_all_is_not_refused_while_replicas_are_added() -> None:
    """The default of min.insync.replicas is 2 once there are three replicas, of every partition, and not before."""
    image = register(register(made(ALONE, 2), 2), 3)
    first, second = keys(image)
    image = grown(image)
    assert [one.replication_factor for one in topic_of(image).partitions] == [3, 3]
    assert least_in_sync(image) == 1
    half = joined(image, [first])
    assert [len(one.isr) for one in topic_of(half).partitions] == [3, 1]
    assert least_in_sync(half) == 1, "the other one would take nothing"
    whole = joined(half, [second])
    assert least_in_sync(whole) == 2
    changes = ImageDelta(half, whole).local_changes(BrokerId(1))
    assert [topic.name for topic in changes.reconfigured] == ["t"], "who leads hears of it"


def test_who_is_to_lead_is_spread_and_leads_once_in_sync() -> None:
    image = register(register(made(ALONE, 9), 2), 3)
    for some in (keys(image)[:4], keys(image)[4:]):
        image = joined(grown(image, some))
    assert {one.leader for one in topic_of(image).partitions} == {1}, "nobody leads anything else by it"
    assert Counter(one.replicas[0] for one in topic_of(image).partitions) == {1: 3, 2: 3, 3: 3}
    image = applied(image, balance_leaders(image, elections_max=100).events)
    assert Counter(one.leader for one in topic_of(image).partitions) == {1: 3, 2: 3, 3: 3}


def test_a_factor_that_was_named_is_kept_and_restored() -> None:
    image = register(register(register(ALONE, 2), 3), 4)
    image = made(image, factor=2)
    assert topic_of(image).desired_replicas == 2
    assert grow_replicas(image, keys(image)).events == ()
    gone = topic_of(image).partitions[0].replicas[1]
    image = fence(image, gone)
    assert grow_replicas(image, keys(image)).events == (), "who is down may come back"
    image = applied(image, remove_broker(image, broker_id=gone).events)
    assert len(topic_of(image).partitions[0].replicas) == 1
    image = joined(grown(image))
    assert len(topic_of(image).partitions[0].isr) == 2


def test_who_is_down_keeps_nobody_from_being_added() -> None:
    image = made(register(ALONE, 2), desired=3)
    assert sorted(topic_of(image).partitions[0].replicas) == [1, 2]
    image = grown(register(fence(image, 1), 3))
    (one,) = topic_of(image).partitions
    assert (one.isr, one.adding, sorted(one.replicas)) == ((2,), (3,), [1, 2, 3])


def test_who_goes_down_while_it_is_added_keeps_nobody_from_being_added() -> None:
    image = fence(grown(register(made(ALONE), 2)), 2)
    assert grow_replicas(image, keys(image)).events == (), "nobody else is there"
    image = grown(register(image, 3))
    (one,) = topic_of(image).partitions
    assert (one.isr, sorted(one.adding), sorted(one.replicas)) == ((1,), [2, 3], [1, 2, 3])
    image = joined(image)
    (one,) = topic_of(image).partitions
    assert (sorted(one.isr), sorted(one.adding)) == ([1, 3], [2, 3]), "who is down is still wanted"
    (back,) = topic_of(joined(register(image, 2))).partitions
    assert (sorted(back.isr), back.adding) == ([1, 2, 3], ())
    (gone,) = topic_of(applied(image, remove_broker(image, broker_id=BrokerId(2)).events)).partitions
    assert (sorted(gone.replicas), gone.adding) == ([1, 3], ())


def test_an_operator_who_wants_fewer_is_heeded() -> None:
    image = register(register(made(ALONE, 2), 2), 3)
    image = joined(grown(image))
    image = joined(reassigned(image, (0, (1, 2))))
    assert topic_of(image).desired_replicas == 2
    assert grow_replicas(image, keys(image)).events == ()
    assert [one.replication_factor for one in topic_of(image).partitions] == [2, 3]
    image = joined(reassigned(image, (0, (1, 2, 3))))
    assert topic_of(image).desired_replicas == 3, "all of them have so many again"


def test_what_an_operator_takes_back_is_not_begun_again() -> None:
    image = grown(register(made(ALONE), 2))
    image = reassigned(image, (0, None))
    assert topic_of(image).partitions[0].replicas == (1,)
    assert grow_replicas(image, keys(image)).events == ()


def test_other_brokers_in_the_same_number_change_nothing_of_what_is_wanted() -> None:
    image = register(made(ALONE, 2), 2)
    assert topic_of(reassigned(image, (0, (2,)))).desired_replicas == 3


def test_a_topic_of_an_earlier_version_keeps_what_it_has() -> None:
    image = register(made(ALONE, desired=0), 2)
    assert grow_replicas(image, keys(image)).events == ()
    assert topic_of(joined(reassigned(image, (0, (1, 2))))).desired_replicas == 2, "until an operator gives it more"


def test_what_nobody_leads_is_left_alone() -> None:
    image = fence(register(with_topic(ALONE, (1,)), 2), 1)
    assert topic_of(image).partitions[0].leader == NO_LEADER
    assert grow_replicas(image, keys(image)).events == ()


@given(histories())
def test_growth_adds_live_brokers_out_of_sync_and_takes_nothing_away(entries: list[Entry]) -> None:
    image = EMPTY_IMAGE
    for at, entry in enumerate(entries, start=1):
        image = image.replay(entry, index=at)
    live = {broker.id for broker in image.live_brokers()}
    after = grown(image)
    assert grow_replicas(image, keys(image)) == grow_replicas(image, keys(image)), "the same image, the same decision"
    for topic, one in image.all_partitions():
        new = after.topics[topic.id].partitions[one.index]
        assert (new.leader, new.leader_epoch, set(new.isr)) == (one.leader, one.leader_epoch, set(one.isr))
        assert set(one.replicas) <= set(new.replicas)
        came = set(new.replicas) - set(one.replicas)
        assert came <= live
        assert set(new.adding) == came.union(one.adding)
        free = one.leader != NO_LEADER and not one.removing and one.move is None
        if free and not is_growing(one, live) and lacks_replicas(topic, one, live):
            wanted = min(topic.desired_replicas, len(live.union(one.replicas)))
            assert len(new.replicas) == wanted
            assert new.replicas[0] in live
        else:
            assert new == one
