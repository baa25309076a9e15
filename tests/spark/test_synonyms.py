"""Options of Spark's own Kafka source are taken by their meaning, or a sentence says what to do."""

from __future__ import annotations

import pytest

from headrace.base.errors import UsageError
from headrace.spark.options import OPTIONS, parse_options
from headrace.spark.pipelines.spec import parse
from headrace.spark.synonyms import EXPLAINED, SYNONYMS
from headrace.spark.write.sink import parse_write_options

ITS_READER = {"kafka.bootstrap.servers": "a:1", "subscribe": "orders", "startingOffsets": "earliest"}
OURS = {"bootstrap": "a:1", "topic": "orders", "startingOffsets": "earliest"}


def test_a_read_as_sparks_kafka_source_has_it_is_ours() -> None:
    assert parse_options(ITS_READER) == parse_options(OURS)
    pattern = {
        "kafka.bootstrap.servers": "a:1",
        "subscribePattern": "or.*",
        "kafka.isolation.level": "read_uncommitted",
    }
    named = {"bootstrap": "a:1", "topicPattern": "or.*", "isolation": "read_uncommitted"}
    assert parse_options(pattern) == parse_options(named)
    assert parse_options({**ITS_READER, "maxOffsetsPerTrigger": "7"}, streaming=True).trigger_records_max == 7


def test_a_write_as_sparks_kafka_sink_has_it_is_ours() -> None:
    written = {"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.compression.type": "lz4"}
    named = {"bootstrap": "a:1", "topic": "t", "compression": "lz4"}
    assert parse_write_options(written, streaming=False) == parse_write_options(named, streaming=False)
    with pytest.raises(UsageError, match="There is no option 'subscribepattern' of a write"):
        parse_write_options({**written, "subscribePattern": "t"}, streaming=False)


def test_two_names_of_one_option_are_refused() -> None:
    with pytest.raises(UsageError, match="Options subscribe and topic are two names of one thing"):
        parse_options({**OURS, "subscribe": "orders"})


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_has_no_meaning_here_is_explained_in_one_sentence(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_options({**OURS, name: "1"})
    assert str(refused.value) == f"There is no option '{name}': {EXPLAINED[name]}."


def test_each_synonym_is_of_an_option() -> None:
    assert set(SYNONYMS.values()) <= {*OPTIONS, "compression"}


def test_a_pipeline_says_what_a_key_is_called() -> None:
    source = {"bootstrap": "a:1", "subscribe": "orders"}
    with pytest.raises(UsageError, match="has no key 'subscribe'; it is called topic here; it has: store, bootstrap"):
        parse({"pipeline": "materialise", "name": "p", "source": source, "table": {"path": "/t"}})
