"""Nothing is decided above the cluster's level, which is raised once all know the next one, and no broker comes that
would stop at once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId, Lineage
from headrace.controller.access.acls import create_acls
from headrace.controller.access.scram import ScramAlteration, alter_scram
from headrace.controller.brokers import register_broker
from headrace.controller.decision import Decision, Refusal
from headrace.controller.levels import finalize_level, raise_level, within_levels
from headrace.controller.lost_quorum import recovered
from headrace.metadata.access.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclRule,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.metadata.codec import decode_events, encode_events
from headrace.metadata.events import LevelFinalized
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.levels import METADATA_LEVEL
from headrace.wire.errors import ErrorCode

CLUSTER = ClusterId("c")
READS = Acl(
    ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "a"),
    AclRule("User:alice", "*", AclOperation.READ, AclPermission.ALLOW),
)
ALICE = ScramAlteration("alice", ScramMechanism.SCRAM_SHA_256, ScramCredential(b"salt", bytes(32), bytes(32), 4096))


RAISE_FIRST = "This cluster is at feature level 0, and {} need 2: raise it first ('headrace upgrade')."


def asked(
    image: MetadataImage, broker: int, level: int, life: int, level_min: int = 0
) -> Decision[BrokerEpoch | Refusal]:
    return register_broker(
        image,
        cluster_id=CLUSTER,
        broker_id=BrokerId(broker),
        directory_id=DirectoryId(uuid.UUID(int=broker)),
        endpoints=(),
        incarnation=IncarnationId(uuid.UUID(int=life)),
        level=level,
        level_min=level_min,
    )


def registered(image: MetadataImage, broker: int, level: int, life: int = 1) -> MetadataImage:
    decision = asked(image, broker, level, life)
    assert decision.result == image.index + 1
    return image.replay(decode_events(encode_events(decision.events)), index=image.index + 1)


def cluster(*levels: int) -> MetadataImage:
    """Brokers from 1 on, with these levels. They are fenced, as a broker is that is being upgraded. The first one is as
    old as the cluster."""
    image = EMPTY_IMAGE
    for broker, level in enumerate(levels, 1):
        image = registered(image, broker, level)
    return image


def wishes(image: MetadataImage) -> list[Decision[Any]]:
    """An ACL; a user, and with the first one the cluster's secret."""
    return [create_acls(image, [READS]), alter_scram(image, [ALICE], b"secret")]


def raised(image: MetadataImage, level: int, *voters: int, **more: bool) -> MetadataImage | str:
    """The image after it, or why it is refused."""
    wanted = {"may_fall": False, "validate_only": False, **more}
    decision = finalize_level(image, level, voters=list(map(BrokerId, voters)), **wanted)
    if isinstance(decision.result, Refusal):
        assert decision.events == ()
        assert decision.result.code is ErrorCode.INVALID_UPDATE_VERSION
        return decision.result.message
    assert within_levels(decision, image, list(map(BrokerId, voters))) == decision
    return image.replay(decode_events(encode_events(decision.events)), index=image.index + 1)


def refusals(image: MetadataImage, *voters: int) -> list[str | None]:
    answers = [within_levels(wish, image, list(map(BrokerId, voters))) for wish in wishes(image)]
    for answer, wish in zip(answers, wishes(image), strict=True):
        if isinstance(answer.result, Refusal):
            assert answer.events == ()
            assert answer.result.code is ErrorCode.UNSUPPORTED_VERSION
        else:
            assert answer == wish
    return [answer.result.message if isinstance(answer.result, Refusal) else None for answer in answers]


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ((1, 1, 0), "Broker 3 runs a release that does not know {}: upgrade or unregister it first."),
        ((0, 1, 0), "Brokers 1, 3 run a release that does not know {}: upgrade or unregister them first."),
    ],
)
def test_nothing_is_decided_that_a_registered_broker_does_not_know(levels: tuple[int, ...], sentence: str) -> None:
    image = cluster(*levels)
    assert refusals(image, 1, 2, 3) == [sentence.format("ACLs"), sentence.format("SCRAM credentials")]
    assert raised(image, 2, 1, 2, 3) == (
        "Brokers 1, 2, 3 run a release that does not know feature level 2: upgrade or unregister them first."
    )
    for broker in (1, 2, 3):
        image = registered(image, broker, METADATA_LEVEL, life=2)
    assert refusals(image, 1, 2, 3) == [RAISE_FIRST.format("ACLs"), RAISE_FIRST.format("SCRAM credentials")]
    assert raised(image, 2, 1, 2, 3, validate_only=True) == image.replay([], index=image.index + 1)
    done = raised(image, 2, 1, 2, 3)
    assert isinstance(done, MetadataImage)
    assert (done.level, refusals(done, 1, 2, 3)) == (2, [None, None])
    assert raised(done, 2, 1, 2, 3, may_fall=True) == done.replay([], index=done.index + 1), "it has that level"


def test_a_new_cluster_is_at_the_level_of_its_first_broker() -> None:
    assert [cluster(level).level for level in (0, 1, 2, 3)] == [0, 0, 2, METADATA_LEVEL]
    assert refusals(cluster(2), 1) == [None, None]
    assert cluster(0, 2).level == 0


@pytest.mark.parametrize(
    ("level", "may_fall", "sentence"),
    [
        (1, False, "a level never falls"),
        (1, True, "a level never falls"),
        (0, True, "a level never falls"),
        (METADATA_LEVEL + 1, False, f"to 2 at least and {METADATA_LEVEL} at most"),
        (METADATA_LEVEL + 1, True, "Can't downgrade to a newer version."),
    ],
)
def test_a_level_that_cannot_be_is_refused(level: int, may_fall: bool, sentence: str) -> None:
    refusal = raised(cluster(2), level, 1, may_fall=may_fall)
    assert isinstance(refusal, str)
    assert sentence in refusal


def test_a_level_is_not_raised_past_a_voter_that_nobody_knows() -> None:
    refusal = raised(cluster(0, 2).replay([]), 2, 1, 3)
    assert refusal == "Broker 1 runs a release that does not know feature level 2: upgrade or unregister it first."
    image = registered(cluster(0), 1, 2, life=2)
    assert raised(image, 1, 1) == "The controller's release can raise the feature level to 2 at least and 2 at most."
    refusal = raised(image, 2, 1, 3)
    assert isinstance(refusal, str)
    assert "Broker 3 votes and has not registered, and may run a release that does not know feature level 2" in refusal


def test_a_cluster_of_before_goes_on_with_its_acls() -> None:
    image = cluster(1)
    image = image.replay(create_acls(image, [READS]).events, index=2)
    assert (image.finalized_level, image.level, refusals(image, 1)) == (0, 1, [None, None])


@pytest.mark.parametrize("level", [0, 1])
def test_no_broker_comes_that_does_not_know_the_level(level: int) -> None:
    answer = asked(cluster(2), 2, level, 1)
    assert answer.events == ()
    assert answer.result == Refusal(
        ErrorCode.INVALID_REGISTRATION,
        "Broker 2 runs a release that does not know feature level 2, which this cluster has: upgrade it.",
    )


def test_no_broker_comes_that_cannot_run_at_so_low_a_level() -> None:
    answer = asked(cluster(0), 2, 5, 1, level_min=1)
    assert answer.events == ()
    assert answer.result == Refusal(
        ErrorCode.INVALID_REGISTRATION,
        "Broker 2 runs a release that knows no feature level below 1, and this cluster is at 0: start it with the "
        "release that ran before, and run 'headrace upgrade' first.",
    )
    assert asked(EMPTY_IMAGE, 2, 5, 1, level_min=1).events, "a new cluster begins at what it knows"


def test_a_voter_that_has_not_registered_may_run_the_oldest_release() -> None:
    image = cluster(1, 1)
    sentence = (
        "Broker 3 votes and has not registered, and may run a release that does not know {}: start it, or demote it "
        "first ('headrace broker demote')."
    )
    assert refusals(image, 1, 2, 3) == [sentence.format("ACLs"), sentence.format("SCRAM credentials")]
    first = [RAISE_FIRST.format("ACLs"), RAISE_FIRST.format("SCRAM credentials")]
    assert refusals(image, 1, 2) == refusals(cluster(1), 1) == refusals(cluster(1)) == first


def test_what_the_oldest_release_knows_is_decided_beside_it() -> None:
    decision = asked(cluster(1, 0), 3, METADATA_LEVEL, 1)
    assert within_levels(decision, cluster(1, 0), []) is decision
    nothing: Decision[Refusal | None] = Decision((), None)
    assert within_levels(nothing, cluster(0), [BrokerId(9)]) is nothing


def test_a_wish_that_changes_nothing_is_answered_as_ever() -> None:
    image = cluster(1).replay(create_acls(EMPTY_IMAGE, [READS]).events, index=2)
    assert within_levels(create_acls(image, [READS]), image, [BrokerId(9)]).result == [None]


@pytest.mark.parametrize("which", [0, 1])
def test_no_broker_comes_that_would_stop_at_what_the_cluster_has(which: int) -> None:
    image = cluster(1)
    image = image.replay(wishes(image)[which].events, index=2)
    answer = asked(image, 2, 0, 1)
    assert answer.events == ()
    assert isinstance(answer.result, Refusal)
    assert answer.result.code is ErrorCode.INVALID_REGISTRATION, "a broker of 0.1.0 stops at it, and tells the message"
    assert answer.result.message == (
        f"Broker 2 runs a release that does not know {('ACLs', 'SCRAM credentials')[which]}, which this cluster has: "
        "upgrade it."
    )
    assert registered(image, 2, 1).brokers[BrokerId(2)].level == 1


def test_a_level_is_raised_without_a_new_registration() -> None:
    image = cluster(0, 1)
    known = image.brokers[BrokerId(1)]
    for level, wanted in ((0, 0), (1, 1), (0, 1)):
        decision = raise_level(image, broker_id=known.id, broker_epoch=known.epoch, level=level)
        assert decision.result is None
        image = image.replay(decode_events(encode_events(decision.events)), index=image.index + 1)
        assert image.brokers[known.id].level == wanted
    assert image.brokers[known.id].epoch == known.epoch
    late = raise_level(image, broker_id=known.id, broker_epoch=BrokerEpoch(known.epoch + 1), level=9)
    assert isinstance(late.result, Refusal)
    assert late.result.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_that_goes_back_to_an_older_release_has_its_level() -> None:
    image = registered(cluster(1), 1, 0, life=2)
    assert image.brokers[BrokerId(1)].level == 0


def test_a_snapshot_and_a_recovery_keep_the_levels() -> None:
    image = cluster(1, 0)
    copied = EMPTY_IMAGE.replay(decode_events(encode_events(image.snapshot())), index=image.index, is_snapshot=True)
    assert copied == image
    image = image.replay([LevelFinalized(level=2)])
    copied = EMPTY_IMAGE.replay(decode_events(encode_events(image.snapshot())), index=image.index, is_snapshot=True)
    assert (copied, copied.level) == (image, 2)
    after = recovered(image, survivors=[BrokerId(1)], lineage=Lineage(1, "r"), by=BrokerId(1), at_ms=0, index=9)
    assert ([broker.level for _, broker in sorted(after.brokers.items())], after.level) == ([1, 0], 2)
