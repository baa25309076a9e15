"""A Redis that fails is logged, and not too often."""

from __future__ import annotations

from structlog.testing import capture_logs

from headrace.storage.redis.errors import RedisUnreachable, refusal
from headrace.storage.redis.links.troubles import Troubles


def test_each_kind_of_failure_is_told_once_in_a_while_and_its_end_once() -> None:
    now = [0.0]
    troubles = Troubles(lambda: now[0])
    with capture_logs() as lines:
        for _ in range(100):
            troubles.note(RedisUnreachable("no"))
            troubles.note(refusal("LOADING it starts"))
        assert [line["reason"] for line in lines] == ["no", "Redis refused a command: LOADING it starts"]
        (state,) = troubles.states()
        assert "LOADING" in state.text
        for _ in range(100):  # it flaps
            troubles.over()
            troubles.note(RedisUnreachable("no"))
        assert len(lines) == 3
        assert lines[-1]["log_level"] == "info"
        troubles.over()
        now[0] = 60.0
        troubles.note(RedisUnreachable("again"))
        troubles.over()
    assert [line["log_level"] for line in lines] == ["warning", "warning", "info", "warning", "info"]
    assert list(troubles.states()) == []
