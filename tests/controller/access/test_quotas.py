"""Entities and keys of quotas, and that a stored quota is one that a broker enforces."""

from __future__ import annotations

import math

import pytest

from headrace.controller.access.quotas import QuotaAlteration, QuotaOp, alter_quotas
from headrace.metadata.access.quotas import quota_entity
from headrace.metadata.events import QuotaChanged
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode

BOTH = (("user", "u"), ("client-id", None))


def change(image: MetadataImage, entity: tuple[tuple[str, str | None], ...], *ops: QuotaOp) -> MetadataImage:
    decision = alter_quotas(image, [QuotaAlteration(entity, ops)])
    assert decision.result == [None]
    return image.replay(decision.events)


def test_quotas_are_set_changed_and_removed() -> None:
    image = change(EMPTY_IMAGE, BOTH, QuotaOp("producer_byte_rate", 1024.0), QuotaOp("request_percentage", 0.5))
    image = change(image, tuple(reversed(BOTH)), QuotaOp("producer_byte_rate", 2048.0))
    assert dict(image.quotas[quota_entity(dict(BOTH))]) == {"producer_byte_rate": 2048.0, "request_percentage": 0.5}
    image = change(image, BOTH, QuotaOp("producer_byte_rate", None), QuotaOp("request_percentage", None))
    assert image.quotas == EMPTY_IMAGE.quotas


def test_what_changes_nothing_commits_nothing() -> None:
    image = change(EMPTY_IMAGE, BOTH, QuotaOp("producer_byte_rate", 1024.0))
    same = [QuotaAlteration(BOTH, (QuotaOp("producer_byte_rate", 1024.0), QuotaOp("consumer_byte_rate", None)))]
    assert alter_quotas(image, same).events == ()
    assert image.replay([QuotaChanged(entity=(("user", None),), changes={"x": None})]).quotas is image.quotas
    more = [QuotaAlteration(BOTH, (QuotaOp("producer_byte_rate", 1.0),))]
    assert alter_quotas(image, more, validate_only=True).events == ()
    assert alter_quotas(image, more).events != ()


@pytest.mark.parametrize(
    ("entity", "key", "value", "words"),
    [
        ((), "producer_byte_rate", 1.0, "empty"),
        ((("user", ""),), "producer_byte_rate", 1.0, "empty"),
        ((("user", "a"), ("user", "b")), "producer_byte_rate", 1.0, "twice"),
        ((("group", "a"),), "producer_byte_rate", 1.0, "group"),
        ((("user", "a" * 1025),), "producer_byte_rate", 1.0, "1024"),
        ((("ip", "10.0.0.1"), ("user", "a")), "connection_creation_rate", 1.0, "name the ip alone"),
        ((("ip", "host.example"),), "connection_creation_rate", 1.0, "is no address"),
        ((("ip", "10.0.0.1"),), "connection_creation_rate", 1.5, "whole number"),
        ((("ip", "10.0.0.1"),), "producer_byte_rate", 1.0, "Unknown quota producer_byte_rate"),
        ((("user", "a"),), "connection_creation_rate", 1.0, "Unknown quota connection_creation_rate"),
        ((("user", "a"),), "controller_mutation_rate", 0.0, "greater than 0"),
        ((("user", "a"),), "producer_byte_rate", 0.0, "greater than 0"),
        ((("user", "a"),), "producer_byte_rate", math.nan, "greater than 0"),
        ((("user", "a"),), "request_percentage", math.inf, "greater than 0"),
        ((("user", "a"),), "request_percentage", 1e-320, "0.001 or more"),
        ((("user", "a"),), "consumer_byte_rate", 1.5, "whole number"),
        ((("user", "a"),), "consumer_byte_rate", 1e30, "too large"),
    ],
)
def test_what_cannot_be_is_refused(
    entity: tuple[tuple[str, str | None], ...], key: str, value: float, words: str
) -> None:
    good = QuotaAlteration((("client-id", "a"),), (QuotaOp("producer_byte_rate", 1.0),))
    decision = alter_quotas(EMPTY_IMAGE, [QuotaAlteration(entity, (QuotaOp(key, value),)), good])
    refusal, fine = decision.result
    assert refusal is not None
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert words in refusal.message
    assert fine is None
    assert len(decision.events) == 1


def test_an_entity_and_a_key_come_once() -> None:
    one = QuotaAlteration(BOTH, (QuotaOp("producer_byte_rate", 1.0),))
    first, again = alter_quotas(EMPTY_IMAGE, [one, QuotaAlteration(tuple(reversed(BOTH)), one.ops)]).result
    assert first is None
    assert again is not None
    (twice,) = alter_quotas(EMPTY_IMAGE, [QuotaAlteration(BOTH, one.ops * 2)]).result
    assert twice is not None


def test_there_are_only_so_many_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.controller.access.quotas.QUOTA_ENTITIES_MAX", 2)
    ops = (QuotaOp("producer_byte_rate", 1.0),)
    wanted = [QuotaAlteration((("client-id", name),), ops) for name in "abc"]
    decision = alter_quotas(EMPTY_IMAGE, wanted)
    assert [refusal and refusal.code for refusal in decision.result] == [None, None, ErrorCode.POLICY_VIOLATION]
    full = EMPTY_IMAGE.replay(decision.events)
    change(full, (("client-id", "a"),), QuotaOp("producer_byte_rate", 2.0))
