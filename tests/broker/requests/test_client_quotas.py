"""The quota that holds for each client, and who shares it. No number of made-up client ids takes more than its room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace.broker.requests.quotas
from headrace.broker.kit.sampled_rate import Window
from headrace.broker.requests.quotas import ClientQuotas, ClientUsage
from headrace.metadata.access.quotas import QuotaEntity, quota_entity
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import QuotaChanged
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.security.authorizer import ANONYMOUS

Quota = tuple[dict[str, str | None], float]
ME = "ANONYMOUS"


class HandClock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


def image(*quotas: Quota, key: str = "producer_byte_rate") -> MetadataImage:
    return EMPTY_IMAGE.replay(
        [QuotaChanged(entity=quota_entity(entity), changes={key: limit}) for entity, limit in quotas]
    )


def client_quotas(*quotas: Quota, key: str = "producer_byte_rate") -> tuple[ClientQuotas, HandClock]:
    clock = HandClock()
    return ClientQuotas(image(*quotas, key=key), clock, Window(11, 1.0)), clock


def limit(quotas: ClientQuotas, client: str) -> float | None:
    usage = quotas.usage(ANONYMOUS, client)
    return None if usage is None or usage.produce is None else usage.produce.limit


IN_ORDER: list[Quota] = [
    ({"user": ME, "client-id": "c"}, 1.0),
    ({"user": ME, "client-id": None}, 2.0),
    ({"user": ME}, 3.0),
    ({"user": None, "client-id": "c"}, 4.0),
    ({"user": None, "client-id": None}, 5.0),
    ({"user": None}, 6.0),
    ({"client-id": "c"}, 7.0),
    ({"client-id": None}, 8.0),
]


@pytest.mark.parametrize("first", range(8))
def test_the_nearest_quota_holds(first: int) -> None:
    """In the order that Kafka documents."""
    quotas, _ = client_quotas(*reversed(IN_ORDER[first:]))
    assert limit(quotas, "c") == IN_ORDER[first][1]


def test_quotas_of_others_do_not_hold() -> None:
    quotas, _ = client_quotas(
        ({"user": "somebody"}, 1.0), ({"client-id": "d"}, 2.0), ({"user": ME, "client-id": "d"}, 3)
    )
    assert quotas.are_set
    assert quotas.usage(ANONYMOUS, "c") is None
    assert limit(quotas, "d") == 3


def test_each_kind_has_its_own() -> None:
    events = [
        QuotaChanged(entity=(("client-id", "c"),), changes={"consumer_byte_rate": 5.0}),
        QuotaChanged(entity=(("user", None),), changes={"request_percentage": 50.0}),
    ]
    quotas = ClientQuotas(EMPTY_IMAGE.replay(events), HandClock(), Window(11, 1.0))
    usage = quotas.usage(ANONYMOUS, "c")
    assert isinstance(usage, ClientUsage)
    assert usage.produce is None
    assert (usage.fetch and usage.fetch.limit, usage.request and usage.request.limit) == (5.0, 50.0)


def record(quotas: ClientQuotas, client: str, amount: float) -> int:
    usage = quotas.usage(ANONYMOUS, client)
    assert usage is not None
    assert usage.produce is not None
    return usage.produce.record(amount)


def test_clients_share_what_is_of_their_user_and_have_what_is_of_them() -> None:
    shared, _ = client_quotas(({"user": None}, 100.0))
    assert record(shared, "a", 1000) == 0
    assert record(shared, "b", 1000) == 10_000
    own, _ = client_quotas(({"client-id": None}, 100.0))
    assert record(own, "a", 1000) == 0
    assert record(own, "b", 1000) == 0
    assert record(own, "a", 1000) == 10_000


def test_a_new_limit_holds_at_once_and_what_was_used_counts() -> None:
    quotas, _ = client_quotas(({"client-id": None}, 100.0))
    assert record(quotas, "a", 2000) == 10_000
    before, after = image(({"client-id": None}, 100.0)), image(({"client-id": None}, 1000.0))
    quotas.on_delta(ImageDelta(before, after))
    assert record(quotas, "a", 1) == 0
    quotas.on_delta(ImageDelta(after, EMPTY_IMAGE))
    assert (quotas.are_set, len(quotas), quotas.usage(ANONYMOUS, "a")) == (False, 0, None)


def test_nobody_waits_longer_than_may_be_told() -> None:
    quotas, _ = client_quotas(({"client-id": None}, 1.0))
    assert record(quotas, "a", 1e12) == 11_000, "all of the window, after which nothing of it counts"
    long = ClientQuotas(image(({"client-id": None}, 1.0)), HandClock(), Window(11, 3600.0))
    assert record(long, "a", 1e12) == 30_000
    percent, _ = client_quotas(({"client-id": None}, 1.0), key="request_percentage")
    usage = percent.usage(ANONYMOUS, "a")
    assert usage is not None
    assert usage.request is not None
    assert usage.request.record(1e6) == 1000, "one sample's time, as on Kafka"


def test_a_quota_of_next_to_nothing_throttles_and_fails_nobody() -> None:
    """One that was kept before it was refused."""
    quotas, clock = client_quotas(({"client-id": None}, 1e-320), key="request_percentage")
    for _ in range(3):
        usage = quotas.usage(ANONYMOUS, "a")
        assert usage is not None
        assert usage.request is not None
        assert usage.request.record(1) == 1000
        clock.now += 1


def test_what_is_lent_is_waited_for_beyond_the_window() -> None:
    quotas, clock = client_quotas(({"client-id": None}, 100.0))
    usage = quotas.usage(ANONYMOUS, "a")
    assert usage is not None
    assert usage.produce is not None
    assert usage.produce.lend(5000) == 11_000
    clock.now += 39
    assert (usage.produce.wait_ms, usage.produce.is_idle) == (1000, False)
    assert usage.produce.record(0) == 1000
    clock.now += 1
    assert usage.produce.wait_ms == 0
    usage.produce.lend(5000)
    before, after = image(({"client-id": None}, 100.0)), image(({"client-id": None}, 1000.0))
    quotas.on_delta(ImageDelta(before, after))
    assert record(quotas, "a", 1) == 0, "another limit forgives it"


def test_made_up_client_ids_take_their_room_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.requests.quotas.QUOTA_CLIENTS_MAX", 50)
    quotas, clock = client_quotas(({"client-id": None}, 100.0))
    assert record(quotas, "known", 2000) == 10_000
    waits = [record(quotas, f"made up {number}", 100) for number in range(500)]
    assert len(quotas) <= 51
    assert waits[:49] == [0] * 49, "each by itself"
    assert waits[-1] > 0, "who is measured together is held up together"
    clock.now += 5
    assert record(quotas, "known", 1) > 0, "nobody is forgotten who has used of it"
    clock.now += 8
    assert record(quotas, "late", 100) == 0, "the idle ones are let go"
    assert len(quotas) <= 3
    assert record(quotas, "known", 1) == 0


def test_a_client_id_of_any_length_takes_no_more_room_than_a_name_of_a_quota() -> None:
    quotas, _ = client_quotas(({"client-id": None}, 100.0))
    assert record(quotas, "a" * 1025, 1000) == 0
    assert record(quotas, "b" * 30_000, 1000) == 10_000, "they are measured together"
    assert len(quotas) == 1
    assert record(quotas, "c" * 1024, 1000) == 0, "and this one by itself"


def test_who_has_a_quota_of_their_own_is_measured_alone_however_many_are_made_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.broker.requests.quotas.QUOTA_CLIENTS_MAX", 50)
    quotas, _ = client_quotas(({"client-id": None}, 100.0), ({"client-id": "mine"}, 1e6), ({"client-id": "few"}, 7.0))
    waits = [record(quotas, f"made up {number}", 900) for number in range(60)]
    assert waits[-1] > 0
    assert record(quotas, "mine", 1e7) == 0
    assert record(quotas, "few", 70) == 0
    assert (limit(quotas, "mine"), limit(quotas, "few"), limit(quotas, "another")) == (1e6, 7.0, 100.0)
    assert record(quotas, "mine", 1e6) > 0, "it was measured"


def test_which_quota_holds_is_looked_up_once_and_anew_when_quotas_change(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    nearest_first = headrace.broker.requests.quotas.nearest_first

    def noted(user: str, client_id: str) -> Iterator[QuotaEntity]:
        looked_up.append(client_id)
        return nearest_first(user, client_id)

    monkeypatch.setattr("headrace.broker.requests.quotas.nearest_first", noted)
    monkeypatch.setattr("headrace.broker.requests.quotas.QUOTA_CLIENTS_MAX", 3)
    quotas, _ = client_quotas(({"client-id": "a"}, 100.0))
    for _ in range(10):
        assert (limit(quotas, "a"), quotas.usage(ANONYMOUS, "b")) == (100.0, None)
    assert looked_up == ["a", "b"]
    for number in range(100):
        assert quotas.usage(ANONYMOUS, f"made up {number}") is None
    assert len(quotas._holdings) <= 3
    before, after = image(({"client-id": "a"}, 100.0)), image(({"client-id": "b"}, 7.0))
    quotas.on_delta(ImageDelta(before, after))
    assert (quotas.usage(ANONYMOUS, "a"), limit(quotas, "b")) == (None, 7.0)


def test_each_user_has_the_quota_that_is_nearest_to_it() -> None:
    quotas, _ = client_quotas(
        ({"user": "alice"}, 1.0), ({"user": None}, 2.0), ({"user": "alice", "client-id": "c"}, 3.0)
    )
    of = {who: quotas.usage(*who) for who in (("User:alice", "c"), ("User:alice", "d"), ("User:bob", "c"))}
    assert [None if usage is None or usage.produce is None else usage.produce.limit for usage in of.values()] == [
        3,
        1,
        2,
    ]


def test_users_of_a_default_quota_are_measured_each_alone() -> None:
    quotas, _ = client_quotas(({"user": None}, 100.0))
    alice, bob = quotas.usage("User:alice", "c"), quotas.usage("User:bob", "c")
    assert alice is not None
    assert bob is not None
    assert alice.produce is not bob.produce
    again = quotas.usage("User:alice", "another")
    assert again is not None
    assert again.produce is alice.produce


def test_users_beyond_the_room_share_one_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.broker.requests.quotas, "QUOTA_CLIENTS_MAX", 3)
    quotas, _ = client_quotas(({"user": None}, 100.0), ({"user": "alice"}, 5.0))
    for number in range(20):
        usage = quotas.usage(f"User:{number}", "c")
        assert usage is not None
        assert usage.produce is not None
        usage.produce.record(1.0)
    assert len(quotas) <= 4
    alice = quotas.usage("User:alice", "c")
    assert alice is not None
    assert alice.produce is not None
    assert alice.produce.limit == 5
