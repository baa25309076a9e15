"""The files of tests that run on both engines, as they are; tests that cannot have a reason each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from tests.tiers import IS_LONG
from tools import engine_under_test
from tools.servers.redis_servers import RedisServer, valkey

SAFE: Final = ("--appendonly", "yes", "--appendfsync", "always")
ENGINES: Final = ("local", "redis")
BOTH: Final = (
    "broker/groups/test_clients.py",
    "broker/groups/test_driver.py",
    "broker/handlers/test_timestamps.py",
    "broker/transactions/test_wire.py",
    "interop/test_aiokafka.py",
    "interop/test_clients_of_a_cluster.py",
    "interop/test_confluent.py",
    "interop/test_groups.py",
    "interop/test_kafka_python.py",
)
"""Files that run on both engines in every tier."""
BOTH_IN_LONG: Final = (
    "broker/groups/test_consumer_groups_wire.py",
    "broker/groups/test_static_members_wire.py",
    "broker/groups/test_subscriptions.py",
    "broker/groups/test_wire.py",
    "broker/handlers/test_admin_wire.py",
    "broker/handlers/test_both_roads_of_fetch.py",
    "broker/handlers/test_both_roads_of_produce.py",
    "broker/handlers/test_data_wire.py",
    "broker/handlers/test_delete_records.py",
    "broker/handlers/test_scram_credentials.py",
    "broker/handlers/test_plain_produce.py",
    "broker/handlers/test_producer_expiry.py",
    "broker/requests/test_client_quotas_wire.py",
    "broker/test_boot.py",
    "broker/upkeep/test_compaction.py",
    "interop/test_answers.py",
    "interop/test_asking.py",
    "interop/test_consumer_groups.py",
    "interop/test_java.py",
    "interop/kafka/test_kafka_batches.py",
    "interop/kafka/test_kafka_tools.py",
    "interop/test_migration.py",
    "interop/test_suites.py",
    "interop/transactions/test_states.py",
    "interop/transactions/test_transactions.py",
    "interop/test_validation.py",
    "promises/test_a_transaction_is_whole_or_nothing.py",
)
"""Files that run on Redis too in the long tier. The short one has the same requests by other clients."""
ANY_FACTOR: Final = "any replication factor is taken on Redis, which keeps the copies"
ONE_REPLICA: Final = "on Redis a partition has one replica, its leader"
NO_LEADER: Final = "on Redis the last broker that stops gives its partitions up"
LOCAL_FILES: Final = "it looks at files of the local engine, or at its disk"
LOCAL_CLEANING: Final = "it takes the place of the cleaning of files; tests/storage/redis/test_cleaning.py has Redis's"
NO_VOTERS: Final = "on Redis the metadata has no voters"
KEEPS_ITS_LEASE: Final = "on Redis metadata that is not stopped keeps the controller's lease"
NOT_ON_REDIS: Final[Mapping[str, str]] = {
    "interop/test_aiokafka.py::test_a_bad_topic_is_refused[redis-factor-]": ANY_FACTOR,
    "interop/test_confluent.py::test_a_bad_topic_is_refused[redis-factor-]": ANY_FACTOR,
    "interop/test_kafka_python.py::test_a_bad_topic_is_refused[redis-factor]": ANY_FACTOR,
    "interop/test_java.py::test_the_java_client[redis-bad_topics]": ANY_FACTOR,
    "interop/kafka/test_kafka_tools.py::test_a_topic_is_made_listed_described_and_deleted[redis]": ONE_REPLICA,
    "interop/kafka/test_kafka_tools.py::test_a_partition_is_moved_throttled_and_led[redis]": ONE_REPLICA,
    "broker/groups/test_wire.py::test_an_acknowledged_commit_is_in_the_files[redis]": LOCAL_FILES,
    "broker/handlers/test_delete_records.py::test_a_start_that_the_disk_refuses_is_not_told[redis]": LOCAL_FILES,
    "broker/handlers/test_delete_records.py::"
    "test_a_producer_is_known_after_its_batches_were_deleted_and_the_broker_was_killed[redis]": LOCAL_FILES,
    "broker/handlers/test_admin_wire.py::test_what_cannot_be_made_is_refused_and_the_rest_is_made[redis]": ANY_FACTOR,
    "broker/handlers/test_admin_wire.py::test_state_is_the_same_after_a_restart_but_for_the_epochs[redis]": NO_LEADER,
    "interop/kafka/test_kafka_tools.py::test_a_plan_is_proposed[redis]": ONE_REPLICA,
    "interop/kafka/test_kafka_tools.py::test_the_cluster_tells_of_itself[redis]": NO_VOTERS,
    "broker/handlers/test_delete_records.py::"
    "test_the_new_start_outlives_the_broker_once_it_is_told[redis]": LOCAL_FILES,
    "broker/upkeep/test_compaction.py::test_a_child_process_compacts_beside_clients[redis]": LOCAL_CLEANING,
    "promises/test_a_transaction_is_whole_or_nothing.py::test_nor_does_one_in_the_middle_of_moves[redis]": ONE_REPLICA,
    "broker/handlers/test_data_wire.py::"
    "test_look_ups_by_time_of_an_unreadable_log_are_refused_not_dropped[redis]": LOCAL_FILES,
    "broker/handlers/test_both_roads_of_fetch.py::"
    "test_both_roads_answer_alike_after_a_wait[redis-damage-11]": LOCAL_FILES,
    "broker/handlers/test_both_roads_of_fetch.py::"
    "test_both_roads_answer_alike_after_a_wait[redis-damage-17]": LOCAL_FILES,
    "broker/handlers/test_both_roads_of_fetch.py::test_a_broker_that_stops_answers_who_waits[redis-11]": NO_LEADER,
    "broker/handlers/test_both_roads_of_fetch.py::test_a_broker_that_stops_answers_who_waits[redis-17]": NO_LEADER,
    "broker/test_boot.py::test_a_stop_that_fails_still_gives_the_directory_back[redis]": KEEPS_ITS_LEASE,
    "broker/upkeep/test_compaction.py::test_kafkas_own_tool_reads_what_was_compacted[redis]": LOCAL_FILES,
    "broker/upkeep/test_compaction.py::"
    "test_a_topic_is_deleted_and_a_broker_stopped_in_the_middle[redis]": LOCAL_CLEANING,
    "broker/upkeep/test_compaction.py::test_a_job_that_fails_leaves_the_log_as_it_was[redis]": LOCAL_CLEANING,
    "broker/upkeep/test_compaction.py::"
    "test_the_cleaner_follows_what_is_configured_while_it_runs[redis-]": LOCAL_CLEANING,
    "broker/upkeep/test_compaction.py::"
    "test_the_cleaner_follows_what_is_configured_while_it_runs[redis-1]": LOCAL_CLEANING,
}
"""Tests that cannot run there, with the reason."""

STARTS_NO_BROKER: Final = ("java",)
"""Shared fixtures of these files that may outlive an engine."""


def of(name: str) -> Sequence[str] | None:
    """Return the engines on which a file runs in this tier; None: it is of one engine."""
    if name in BOTH or (IS_LONG and name in BOTH_IN_LONG):
        return ENGINES
    return None


def check_names(tests: Path) -> None:
    """Raises AssertionError where a file is listed that is not there."""
    missing = [name for name in (*BOTH, *BOTH_IN_LONG) if not (tests / name).exists()]
    assert not missing, f"tests/engines.py lists {missing}"


def skip_what_cannot_be(items: Iterable[pytest.Item], tests: Path) -> None:
    """Skip the tests of NOT_ON_REDIS."""
    for item in items:
        name = f"{item.path.relative_to(tests)}::{item.nodeid.partition('::')[2]}"
        if (reason := NOT_ON_REDIS.get(name)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def check_fixtures(items: Iterable[pytest.Item], tests: Path) -> None:
    """Raises UsageError where a fixture outlives its engine. A fixture that tests of a listed file share has to ask for
    `engine`, itself or through others. Otherwise its brokers would be those of the engine before."""
    for item in items:
        if not isinstance(item, pytest.Function) or of(str(item.path.relative_to(tests))) is None:
            continue
        known = item._fixtureinfo.name2fixturedefs
        for name, (*_, last) in known.items():
            is_shared = last.scope != "function" and last.func.__code__.co_filename == str(item.path)
            if is_shared and name not in STARTS_NO_BROKER and not _asks_for_engine(name, known):
                raise pytest.UsageError(f"{item.path}: fixture {name} has to ask for `engine`, or starts no broker.")


def _asks_for_engine(name: str, known: Mapping[str, Sequence[Any]]) -> bool:
    return any(
        each == "engine" or (each in known and each != name and _asks_for_engine(each, known))
        for each in known[name][-1].argnames
    )


@contextmanager
def started(name: str) -> Iterator[None]:
    """Start every broker on this engine, in this process or as one of its own, until the end of the block."""
    if name == "local":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hr") as place, pytest.MonkeyPatch.context() as patch:
        plain = Broker.__init__

        def on_engine(self: Broker, config: BrokerConfig, **ports: Any) -> None:
            plain(self, engine_under_test.on_engine(config), **ports)

        with RedisServer(valkey(), Path(place), SAFE) as server:
            patch.setattr(Broker, "__init__", on_engine)
            engine_under_test.use(server.url)
            try:
                yield
            finally:
                engine_under_test.use(None)
