"""The integration tests of other clients, unmodified, against a broker by its address.

`suites/*.toml` lists tests that are not run, case by case, with the reason; docs/SKIPPED.md has a summary. A case that
fails without being listed is our fault. A listed case that passes, or no longer exists, must be removed from the list.
Every `make test` runs the suite whose sdist has its tests. `make suites` runs all, and tries the listed ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import suite_runs
from tests.interop.suite_runs import Outcome, Suite
from tools.servers.broker_process import BrokerProcess

BRIEF = ("kafka-python",)
ALL = ("kafka-python", "aiokafka", "confluent-kafka", "confluent-kafka-consumer-protocol")
RUN_ALL = os.environ.get("HEADRACE_SUITES") == "all"
NAMED_BROKER = os.environ.get("HEADRACE_TEST_BOOTSTRAP")


@pytest.fixture(params=ALL if RUN_ALL else BRIEF)
def suite(request: pytest.FixtureRequest) -> Suite:
    return suite_runs.load(request.param)


@pytest.fixture
def folder(suite: Suite, tmp_path: Path) -> Path:
    """Where its tests are."""
    found = suite_runs.sources(suite, tmp_path / "sources")
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def address(suite: Suite, tmp_path: Path) -> Iterator[str]:
    """Of a broker with the configs that the suite's own Kafka has, and with the id 0, which some count on."""
    if NAMED_BROKER:
        yield NAMED_BROKER
        return
    options = [part for key, value in suite.broker.items() for part in ("--config", f"{key}={value}")]
    with BrokerProcess(tmp_path / "broker", *options, broker_id=0) as broker:
        yield broker.bootstrap


def test_what_is_not_listed_passes(suite: Suite, folder: Path, address: str, tmp_path: Path) -> None:
    outcome = suite_runs.run(suite, folder, address, tmp_path)
    print("\n" + outcome.line(f"{suite.data.stem} {suite.version}"))
    assert not outcome.failed, _told(outcome)
    assert not outcome.stale, f"{suite.data.name} lists what the suite has not: {outcome.stale}"
    assert len(outcome.passed) > len(outcome.skipped), _told(outcome)


@pytest.mark.skipif(not RUN_ALL, reason="`make suites` tries what is listed")
def test_what_is_listed_does_not_pass(suite: Suite, folder: Path, address: str, tmp_path: Path) -> None:
    """But for groups that only time ends (`waits`)."""
    outcome = suite_runs.run(suite, folder, address, tmp_path, only_listed=True)
    print(f"\n{suite.data.stem}, what is listed: {len(outcome.failed)} failed, {len(outcome.skipped)} skipped")
    assert not outcome.passed, f"to be struck off {suite.data.name}: {outcome.passed}"


def _told(outcome: Outcome) -> str:
    failed = "\n".join(f"  {case}: {message}" for case, message in outcome.failed.items())
    return f"{len(outcome.failed)} failed:\n{failed}\n{outcome.output[-6000:]}"
