"""After a test on Spark was ended by its limit, the next call has its own answer, at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest

from tests.spark import interrupted

SLEEP_MS = 1_200_000


class Ended(BaseException):
    """As a test's limit raises it: no Exception."""


def test_a_call_after_one_that_was_interrupted_has_its_own_answer(spark: Any, request: pytest.FixtureRequest) -> None:
    def end(*_: object) -> None:
        raise Ended

    math, thread = spark._jvm.java.lang.Math, spark._jvm.java.lang.Thread
    assert math.max(1, 2) == 2
    before = signal.signal(signal.SIGUSR1, end)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    threading.Thread(target=_signal_when_it_waits, args=(threading.get_ident(),), daemon=True).start()
    with pytest.raises(Ended) as raised:
        thread.sleep(SLEEP_MS)
    assert interrupted.begin_anew(raised.value)
    assert math.max(3, 4) == 4
    assert spark.range(3).count() == 3


def test_what_did_not_come_out_of_java_closes_nothing(spark: Any) -> None:
    assert not interrupted.begin_anew(Ended())
    assert not interrupted.begin_anew(ValueError())


def _signal_when_it_waits(ident: int) -> None:
    """For Java's answer, in that thread."""
    pause = threading.Event()
    while sys._current_frames()[ident].f_code.co_name != "readinto":
        pause.wait(0.01)
    os.kill(os.getpid(), signal.SIGUSR1)
