"""Suggested configs, by themselves: each is known where it is suggested, and its value is allowed."""

from __future__ import annotations

import pytest

from headrace.cli.settings.suggestions import BROKER, GROUP, TABLES, TOPIC, meant
from headrace.metadata.kafka_configs import BROKER_FACTS, TOPIC_FACTS

NAMES = sorted({fact.key for fact in (*BROKER_FACTS, *TOPIC_FACTS)})


@pytest.mark.parametrize("kind", TABLES)
def test_a_suggestion_for_any_name_of_kafka_may_be_set(kind: str) -> None:
    """Whole, without its first or last letter, and with underscores."""
    found = 0
    for name in NAMES:
        for typed in (name, name[:-1], name[1:], name.replace(".", "_")):
            for value in ("1", "-1", "true", "delete", "soon", "2h"):
                suggested = meant(kind, typed, value)
                if suggested is None:
                    continue
                definition = TABLES[kind][suggested.key]
                assert definition.dynamic
                assert suggested.value is None or definition.problem(suggested.value) is None
                assert suggested != (typed, value)
                found += 1
    assert found > 10


def test_every_broker_config_of_topics_leads_to_the_topics_own() -> None:
    for key, definition in TABLES[TOPIC].items():
        if definition.broker_key in (None, key) or definition.is_hidden or definition.honoured is not None:
            continue
        suggested = meant(TOPIC, definition.broker_key or "", definition.default)
        assert suggested is not None
        assert suggested.key == key


@pytest.mark.parametrize(
    ("kind", "typed", "suggested"),
    [
        (TOPIC, ("log.retention.hours", "168"), ("retention.ms", "604800000")),
        (TOPIC, ("log.retention.minutes", "-1"), ("retention.ms", "-1")),
        (TOPIC, ("log.roll.hours", "1"), ("segment.ms", "3600000")),
        (BROKER, ("log.roll.hours", "1"), ("log.roll.ms", "3600000")),
        (BROKER, ("retention.bytes", "1"), ("log.retention.bytes", "1")),
        (TOPIC, ("RETENTION_MS", "1"), ("retention.ms", "1")),
        (TOPIC, ("min.isr", "2"), ("min.insync.replicas", "2")),
        (TOPIC, ("retention.ms", "1 day"), None),
        (GROUP, ("heartbeat.interval.ms", "5000"), ("consumer.heartbeat.interval.ms", "5000")),
        (TOPIC, ("retention.ms", "1"), None),
        (TOPIC, ("something.else.entirely", "1"), None),
    ],
)
def test_meanings(kind: str, typed: tuple[str, str], suggested: tuple[str, str] | None) -> None:
    found = meant(kind, *typed)
    assert (None if found is None or found.value is None else tuple(found)) == suggested
