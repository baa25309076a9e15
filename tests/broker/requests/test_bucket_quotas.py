"""Quotas of changes by the controller, and of new connections: which holds, what is refused, what it costs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headrace.broker.requests.bucket_quotas
from headrace.broker.requests.bucket_quotas import BucketQuotas
from headrace.metadata.access.quotas import quota_entity
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import QuotaChanged
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import alter_client_quotas as quotas
from headrace.wire.messages import create_partitions, create_topics, delete_topics
from tests.broker.group_broker import RawClient, running
from tests.broker.requests.test_client_quotas import HandClock

ALICE = "User:alice"


def image(key: str, *limits: tuple[dict[str, str | None], float]) -> MetadataImage:
    return EMPTY_IMAGE.replay(
        [QuotaChanged(entity=quota_entity(entity), changes={key: limit}) for entity, limit in limits]
    )


def test_a_burst_may_be_overdrawn_once_and_is_then_waited_for() -> None:
    clock = HandClock()
    made = BucketQuotas(image("controller_mutation_rate", ({"user": "alice"}, 1.0)), clock, 10.0)
    request = made.mutations(ALICE, "c", is_strict=True)
    assert [request.may_make(number) for number in (4, 9, 1)] == [True, True, False]
    assert request.wait_ms == 3000
    clock.now += 3
    assert made.mutations(ALICE, "d", is_strict=True).may_make(1)
    assert made.mutations("User:bob", "c", is_strict=True).may_make(1000)


def test_an_old_client_is_told_to_wait_and_served() -> None:
    made = BucketQuotas(image("controller_mutation_rate", ({"user": None}, 1.0)), HandClock(), 10.0)
    request = made.mutations(ALICE, "c", is_strict=False)
    assert [request.may_make(20), request.may_make(20)] == [True, True]
    assert request.wait_ms == 30_000


def test_connections_are_counted_by_address() -> None:
    clock = HandClock()
    rates = image("connection_creation_rate", ({"ip": None}, 1.0), ({"ip": "10.0.0.1"}, 3.0))
    made = BucketQuotas(rates, clock, 2.0)

    def admitted(host: str) -> int:
        return sum(made.newcomer_waits_ms(host) == 0 for _ in range(20))

    assert [admitted(host) for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.2")] == [7, 3, 3, 0]
    clock.now += 100
    assert admitted("10.0.0.2") == 3


def test_made_up_addresses_take_no_more_than_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.broker.requests.bucket_quotas, "QUOTA_CLIENTS_MAX", 10)
    made = BucketQuotas(image("connection_creation_rate", ({"ip": None}, 1.0)), HandClock(), 2.0)
    for number in range(1000):
        made.newcomer_waits_ms(f"10.0.{number}")
    assert len(made) <= 11
    before = image("connection_creation_rate", ({"ip": None}, 1.0))
    made.on_delta(ImageDelta(before, EMPTY_IMAGE))
    assert (len(made), made.newcomer_waits_ms("10.0.0.1")) == (0, 0)


async def test_topics_beyond_the_quota_are_refused_by_name(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "data", {"controller.quota.window.num": "1"}) as bootstrap,
        RawClient(bootstrap) as client,
    ):
        entry = quotas.RequestEntryData(
            (quotas.RequestEntityData("user", None),), (quotas.OpData("controller_mutation_rate", 0.001),)
        )
        set_ = await client.ask(1, quotas.AlterClientQuotasRequest(entries=(entry,)))
        assert not set_.entries[0].error_code
        topics = tuple(create_topics.CreatableTopic(name, 1, 1) for name in ("a", "b"))
        made = await client.ask(7, create_topics.CreateTopicsRequest(topics=topics, timeout_ms=120_000))
        assert [each.error_code for each in made.topics] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert made.throttle_time_ms > 0
        gone = await client.ask(5, delete_topics.DeleteTopicsRequest(topic_names=("a",), timeout_ms=120_000))
        assert gone.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        more = (create_partitions.CreatePartitionsTopic("a", 2, None),)
        grown = await client.ask(3, create_partitions.CreatePartitionsRequest(topics=more, timeout_ms=120_000))
        assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        old = await client.ask(2, create_partitions.CreatePartitionsRequest(topics=more, timeout_ms=120_000))
        assert (old.results[0].error_code, old.throttle_time_ms > 0) == (0, True)


async def test_an_address_that_connects_too_often_is_cut_off_and_others_are_served(tmp_path: Path) -> None:
    configs = {"controller.quota.window.num": "1"}
    async with running(tmp_path / "data", configs) as bootstrap, RawClient(bootstrap) as client:
        entry = quotas.RequestEntryData(
            (quotas.RequestEntityData("ip", "127.0.0.9"),), (quotas.OpData("connection_creation_rate", 1.0),)
        )
        assert not (await client.ask(1, quotas.AlterClientQuotasRequest(entries=(entry,)))).entries[0].error_code
        refused = 0
        for _ in range(5):
            try:
                async with RawClient(bootstrap, host="127.0.0.9") as one:
                    await one.ask(7, create_topics.CreateTopicsRequest(timeout_ms=120_000))
            except (ConnectionError, asyncio.IncompleteReadError):
                refused += 1
        assert refused > 0
        async with RawClient(bootstrap, host="127.0.0.8") as other:
            await other.ask(7, create_topics.CreateTopicsRequest(timeout_ms=120_000))
