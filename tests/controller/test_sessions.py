"""Sessions: silence fences, death fences at once but not for ever, and this node's own pauses fence nobody."""

from __future__ import annotations

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.controller.sessions import HASTY_FENCINGS_MAX, HASTY_WINDOW_S, Sessions
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from tests.controller.test_brokers import fence, register

ONE, TWO = BrokerId(1), BrokerId(2)


def cluster() -> MetadataImage:
    return register(register(register(EMPTY_IMAGE, 1), 2), 3)


def sessions(now: float = 100.0) -> Sessions:
    return Sessions(timeout_s=6.0, me=BrokerId(3), now=now)


def test_a_new_controller_gives_everyone_a_full_session_and_then_fences_who_is_silent() -> None:
    image, at = cluster(), sessions()
    assert at.tick(image, 101.0) == []
    assert at.tick(image, 103.0) == []
    at.heard(ONE, image.brokers[ONE].epoch, 104.0)
    assert at.tick(image, 105.0) == []
    assert at.tick(image, 106.9) == []
    assert at.tick(image, 107.0) == [(TWO, image.brokers[TWO].epoch)]
    assert at.tick(fence(image, 2), 109.9) == []
    assert at.tick(fence(image, 2), 110.0) == [(ONE, image.brokers[ONE].epoch)], "its own broker it never fences"


def test_the_controller_before_this_one_was_heard_before_this_one_was() -> None:
    image, at = cluster(), sessions()
    at.heard(ONE, image.brokers[ONE].epoch, 98.5)
    assert at.tick(image, 101.0) == []
    assert at.tick(image, 104.0) == []
    assert at.wait_s(104.0, 1.0) == 0.5
    assert at.tick(image, 104.5) == [(ONE, image.brokers[ONE].epoch)]
    assert at.wait_s(104.5, 1.0) == 1.0, "what is over and was not ended is not looked at without a pause"
    assert at.wait_s(106.5, 1.0) == 0.5
    assert at.tick(image, 107.0) == [(ONE, image.brokers[ONE].epoch), (TWO, image.brokers[TWO].epoch)]


def test_a_pause_of_the_controller_counts_for_nobody() -> None:
    image, at = cluster(), sessions()
    at.tick(image, 101.0)
    assert at.tick(image, 161.0) == []
    assert at.tick(image, 163.0) == []
    assert {broker for broker, _ in at.tick(image, 164.0)} == {ONE, TWO}


def test_an_old_incarnation_s_session_is_not_the_new_one_s() -> None:
    image, at = cluster(), sessions()
    at.tick(image, 101.0)
    restarted = register(image, 1)
    assert at.tick(restarted, 103.0) == []
    at.heard(TWO, image.brokers[TWO].epoch, 104.0)
    assert at.tick(restarted, 106.0) == []
    assert at.tick(restarted, 108.9) == []
    assert at.tick(restarted, 109.0) == [(ONE, restarted.brokers[ONE].epoch)]


def test_who_dies_again_and_again_waits_out_its_session() -> None:
    image, at = cluster(), sessions()
    for _ in range(HASTY_FENCINGS_MAX):
        assert at.died(image, ONE, 200.0) == (ONE, image.brokers[ONE].epoch)
    assert at.died(image, ONE, 200.0 + HASTY_WINDOW_S - 1) is None
    assert at.died(image, TWO, 201.0) is not None
    assert at.died(image, ONE, 200.0 + HASTY_WINDOW_S) is not None


def test_the_dead_that_are_fenced_unknown_or_this_node_are_nobody_to_fence() -> None:
    image, at = cluster(), sessions()
    assert at.died(fence(image, 1), ONE, 200.0) is None
    assert at.died(image, BrokerId(9), 200.0) is None
    assert at.died(image, BrokerId(3), 200.0) is None


def test_a_session_is_known_by_who_was_heard() -> None:
    image, at = cluster(), sessions()
    assert not at.has(ONE, 100.0)
    at.heard(ONE, BrokerEpoch(1), 100.0)
    assert at.has(ONE, 105.9)
    assert not at.has(ONE, 106.0)
    assert at.tick(image, 101.0) == []


def test_this_node_s_own_broker_is_always_there() -> None:
    image, at = cluster(), sessions()
    assert at.has(BrokerId(3), 100.0)
    assert at.tick(image, 101.0) == []
    assert at.has(BrokerId(3), 1_000.0)
