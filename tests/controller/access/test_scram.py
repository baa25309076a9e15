"""SCRAM credentials are set and deleted, each user of a request for itself, and are shown to nobody."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace.controller.access import scram as deciding
from headrace.controller.access.scram import ScramAlteration, alter_scram
from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.metadata.codec import image_as_json, shown_event
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
CREDENTIAL = ScramCredential(b"salt", bytes(32), bytes(32), 4096)
LONG_CREDENTIAL = ScramCredential(b"salt", bytes(64), bytes(64), 4096)


def altered(image: MetadataImage, *alterations: ScramAlteration) -> MetadataImage:
    decision = alter_scram(image, alterations)
    assert set(decision.result) == {None}
    return image.replay(decision.events)


def test_both_mechanisms_stand_side_by_side() -> None:
    image = altered(EMPTY_IMAGE, ScramAlteration("alice", SHA_256, CREDENTIAL))
    image = altered(
        image, ScramAlteration("alice", SHA_512, LONG_CREDENTIAL), ScramAlteration("bob", SHA_512, LONG_CREDENTIAL)
    )
    assert {user: set(found) for user, found in image.scram.items()} == {"alice": {SHA_256, SHA_512}, "bob": {SHA_512}}
    image = altered(image, ScramAlteration("alice", SHA_256), ScramAlteration("bob", SHA_512))
    assert {user: set(found) for user, found in image.scram.items()} == {"alice": {SHA_512}}


def test_the_image_for_people_has_no_keys() -> None:
    image = altered(EMPTY_IMAGE, ScramAlteration("alice", SHA_256, CREDENTIAL))
    assert image_as_json(image)["scram"] == {"alice": {"SCRAM-SHA-256": {"iterations": 4096}}}
    assert "key" not in json.dumps(image_as_json(image)["scram"])
    (event,) = alter_scram(EMPTY_IMAGE, [ScramAlteration("alice", SHA_256, CREDENTIAL)]).events
    assert "key" not in json.dumps(shown_event(event))


def test_the_first_user_brings_the_secret_of_the_cluster() -> None:
    alice, bob = ScramAlteration("alice", SHA_256, CREDENTIAL), ScramAlteration("bob", SHA_256, CREDENTIAL)
    assert alter_scram(EMPTY_IMAGE, [ScramAlteration("alice", SHA_256)], b"one").events == ()
    made = alter_scram(EMPTY_IMAGE, [alice], b"one").events
    image = EMPTY_IMAGE.replay(made)
    assert image.secret == b"one"
    image = image.replay(alter_scram(image, [bob], b"two").events)
    assert image.secret == b"one"
    shown = (
        repr(image),
        repr(made),
        json.dumps(image_as_json(image)),
        *(json.dumps(shown_event(each)) for each in made),
    )
    assert not any("one" in each.replace("None", "") or "b25l" in each for each in shown), "in Base64, too"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (ScramAlteration("", SHA_256, CREDENTIAL), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a" * 1025, SHA_256, CREDENTIAL), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", ScramMechanism.UNKNOWN, CREDENTIAL), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramAlteration("a", SHA_256, replace(CREDENTIAL, iterations=4095)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", SHA_256, replace(CREDENTIAL, iterations=16_385)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", SHA_256, replace(CREDENTIAL, salt=b"")), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", SHA_256, LONG_CREDENTIAL), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", SHA_512, CREDENTIAL), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", SHA_256, replace(CREDENTIAL, server_key=b"")), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramAlteration("a", SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_a_bad_change_is_refused_alone(bad: ScramAlteration, code: ErrorCode) -> None:
    decision = alter_scram(EMPTY_IMAGE, [bad, ScramAlteration("bob", SHA_256, CREDENTIAL)])
    refusal, none = decision.result
    assert refusal is not None
    assert refusal.code == code
    assert none is None
    assert len(decision.events) == 1


def test_a_user_is_changed_once_in_a_request() -> None:
    twice = [ScramAlteration("alice", SHA_256, CREDENTIAL), ScramAlteration("alice", SHA_512, LONG_CREDENTIAL)]
    decision = alter_scram(EMPTY_IMAGE, twice)
    assert [refusal and refusal.code for refusal in decision.result] == [ErrorCode.DUPLICATE_RESOURCE] * 2
    assert decision.events == ()


def test_the_number_of_users_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "SCRAM_USERS_MAX", 1)
    image = altered(EMPTY_IMAGE, ScramAlteration("alice", SHA_256, CREDENTIAL))
    same, other = ScramAlteration("alice", SHA_512, LONG_CREDENTIAL), ScramAlteration("bob", SHA_256, CREDENTIAL)
    done, refused = alter_scram(image, [same, other]).result
    assert done is None
    assert refused is not None
    assert refused.code == ErrorCode.POLICY_VIOLATION
