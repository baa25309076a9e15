"""Options of Spark's own Kafka source and sink: another name of one of ours, or a sentence that says what to do.

Names are in lower case here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from headrace.base.errors import UsageError

SYNONYMS: Final[Mapping[str, str]] = {
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "kafka.bootstrap.servers": "bootstrap",
    "kafka.isolation.level": "isolation",
    "kafka.compression.type": "compression",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
}
"""The option of ours that means the same."""
_GROUPS: Final = "a read uses no consumer group, so leave it out"
_WAITS: Final = "Headrace waits and tries again by itself, so leave it out"
_BY_TIME: Final = "give startingTimestamp or endingTimestamp, one time in milliseconds for all partitions"
_AT_ONCE: Final = "a micro-batch begins as soon as there is a record, so leave it out and set the trigger's interval"
EXPLAINED: Final[Mapping[str, str]] = {
    "startingoffsetsbytimestamp": _BY_TIME,
    "endingoffsetsbytimestamp": _BY_TIME,
    "startingoffsetsbytimestampstrategy": "a time behind the last record stands for the end, so leave it out",
    "minoffsetspertrigger": _AT_ONCE,
    "maxtriggerdelay": _AT_ONCE,
    "maxrecordsperpartition": "give maxBytesPerPartition, the bytes that one task reads",
    "groupidprefix": _GROUPS,
    "kafka.group.id": _GROUPS,
    "kafkaconsumer.polltimeoutms": _WAITS,
    "fetchoffset.numretries": _WAITS,
    "fetchoffset.retryintervalms": _WAITS,
    "kafka.acks": "a write always waits for all in-sync replicas, so leave it out",
    "kafka.key.deserializer": "keys are binary: cast the column",
    "kafka.value.deserializer": "values are binary: cast the column",
    "kafka.key.serializer": "a key is a binary or string column: cast it",
    "kafka.value.serializer": "a value is a binary or string column: cast it",
    "kafka.auto.offset.reset": "give startingOffsets",
    "kafka.enable.auto.commit": "a stream's checkpoint has its offsets, so leave it out",
}
"""By name, the advice that ends the refusal."""


def own_names(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The options (by lower-case name) under our own names. `known`: the names that this side has. Raises UsageError
    where two names of one option are given, and where an option of Spark's Kafka source has no meaning here.
    """
    found = dict(given)
    for name in sorted(set(given) & set(SYNONYMS)):
        own = SYNONYMS[name]
        if own not in known:
            continue
        if own.lower() in given:
            raise UsageError(f"Options {name} and {own} are two names of one thing: give one of them.")
        found[own.lower()] = found.pop(name)
    for name in sorted(set(found) & set(EXPLAINED)):
        raise UsageError(f"There is no option '{name}': {EXPLAINED[name]}.")
    return found


def hint(name: str) -> str:
    """The end of a sentence: the name that a key has here. It is empty for unknown keys."""
    own = SYNONYMS.get(name.lower())
    return "" if own is None else f"; it is called {own} here"
