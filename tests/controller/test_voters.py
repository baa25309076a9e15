"""Members that are promoted automatically: laws over any image and any membership."""

from __future__ import annotations

import uuid
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BrokerEpoch, BrokerId, DirectoryId
from headrace.controller.asks.brokers import QuorumReplica, QuorumView
from headrace.controller.voters import outlook, promotable, withhold_vote, wrongly_withheld
from headrace.metadata.events import BrokerRegistered, BrokerUnfenced, VoteWithheld
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage

HIGH_WATERMARK = 10
wanted_counts = st.integers(1, 5)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[MetadataImage, QuorumView]:
    """Brokers that live, are fenced, have another disk or none, and what the quorum knows of them."""
    events: list[BrokerRegistered | BrokerUnfenced | VoteWithheld] = []
    replicas = []
    for number in draw(st.sets(st.integers(1, 7), min_size=1)):
        broker, directory = BrokerId(number), DirectoryId(uuid.UUID(int=number))
        if draw(st.booleans() | st.just(True)):
            disk = draw(st.sampled_from((number, number, number, 99)))
            events.append(
                BrokerRegistered(
                    broker_id=broker,
                    broker_epoch=BrokerEpoch(1),
                    directory_id=DirectoryId(uuid.UUID(int=disk)),
                    endpoints=(),
                    rack=None,
                )
            )
            if draw(st.booleans() | st.just(True)):
                events.append(BrokerUnfenced(broker_id=broker, broker_epoch=BrokerEpoch(1)))
        events.append(VoteWithheld(broker_id=broker, withheld=draw(st.sampled_from((False, False, True)))))
        replicas.append(
            QuorumReplica(
                broker_id=broker,
                directory_id=directory,
                voter=draw(st.booleans()),
                log_end_offset=draw(st.integers(HIGH_WATERMARK - 1, HIGH_WATERMARK + 1)),
            )
        )
    view = QuorumView(leader=BrokerId(1), epoch=1, high_watermark=HIGH_WATERMARK, replicas=tuple(replicas))
    return EMPTY_IMAGE.replay(events, index=1), view


def voters(view: QuorumView) -> set[int]:
    return {replica.broker_id for replica in view.replicas if replica.voter}


def promoted(view: QuorumView, broker: BrokerId) -> QuorumView:
    return replace(
        view,
        replicas=tuple(
            replace(replica, voter=True) if replica.broker_id == broker else replica for replica in view.replicas
        ),
    )


@given(clusters(), wanted_counts)
def test_whoever_is_promoted_lives_has_its_disk_has_caught_up_and_was_not_demoted(
    cluster: tuple[MetadataImage, QuorumView], wanted: int
) -> None:
    image, view = cluster
    for learner in promotable(image, view, wanted):
        known = image.brokers[learner.broker_id]
        assert not learner.voter
        assert not known.fenced
        assert known.directory_id == learner.directory_id
        assert learner.log_end_offset >= view.high_watermark
        assert learner.broker_id not in image.withheld


@given(clusters(), wanted_counts)
def test_one_after_the_other_until_there_are_enough_or_nobody_is_left(
    cluster: tuple[MetadataImage, QuorumView], wanted: int
) -> None:
    image, view = cluster
    before = voters(view)
    eligible = {learner.broker_id for learner in promotable(image, view, wanted)}
    while learners := promotable(image, view, wanted):
        view = promoted(view, learners[0].broker_id)
    assert len(voters(view)) == max(len(before), min(wanted, len(before) + len(eligible)))
    assert before <= voters(view), "nobody is demoted by itself"


@given(clusters(), wanted_counts)
def test_what_is_told_of_the_learners_is_told_while_voters_lack(
    cluster: tuple[MetadataImage, QuorumView], wanted: int
) -> None:
    image, view = cluster
    said = outlook(image, view, wanted)
    assert bool(said) == (len(voters(view)) < wanted)
    learners = promotable(image, view, wanted)
    if learners and len(learners) <= wanted - len(voters(view)):
        told = [learner for learner in learners if f"broker {learner.broker_id} will be promoted" in said]
        assert told or "will be promoted once caught up" in said


@given(clusters(), st.booleans())
def test_a_demotion_is_remembered_once_and_forgotten(cluster: tuple[MetadataImage, QuorumView], withheld: bool) -> None:
    image, view = cluster
    for replica in view.replicas:
        decision = withhold_vote(image, broker_id=replica.broker_id, withheld=withheld)
        after = image.replay(decision.events, index=image.index + 1)
        assert (replica.broker_id in after.withheld) == withheld
        assert not withhold_vote(after, broker_id=replica.broker_id, withheld=withheld).events
        assert (replica.broker_id in wrongly_withheld(after, view)) == (replica.voter and withheld)
