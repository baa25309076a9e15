"""A timer that rings once it is no longer reset, in a thread that sleeps until then."""

from __future__ import annotations

import threading

import pytest

from headrace.broker.alarm import Alarm, has_alarms

pytestmark = pytest.mark.skipif(not has_alarms(), reason="this system has no such timers")
LONG_S = 3600.0


def test_it_rings_when_its_time_has_come() -> None:
    alarm = Alarm()
    alarm.set(0.001)
    alarm.wait()
    alarm.close()


def test_setting_it_anew_takes_the_place_of_what_was_set_and_wakes_who_waits() -> None:
    alarm, rung = Alarm(), threading.Event()

    def wait() -> None:
        alarm.wait()
        rung.set()

    alarm.set(0.001)
    alarm.set(LONG_S)
    thread = threading.Thread(target=wait)
    thread.start()
    assert not rung.is_set()
    alarm.set(0)
    thread.join()
    assert rung.is_set()
    alarm.close()
