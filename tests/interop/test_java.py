"""Apache Kafka's own Java client, through the small Maven project in java/; each case is one method in Cases.java."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.interop import java_project
from tests.interop.support.asking import asked
from tests.interop.support.samples import CODECS

CASES: Final = [
    *(f"produce_and_consume {codec}" for codec in CODECS),
    *(f"nulls_and_headers {codec}" for codec in CODECS),
    *(f"acknowledgements {acks}" for acks in ("0", "1", "all")),
    "idempotent_producer",
    "a_mebibyte",
    "offsets_by_time",
    "group_goes_on",
    "group_offsets",
    *(f"consumer_group_shares {assignor}" for assignor in ("uniform", "range")),
    "consumer_group_static_member",
    "consumer_group_pattern",
    "consumer_group_described",
    "consumer_group_after_classic",
    *(f"migration {how}" for how in ("eager", "cooperative", "static cooperative")),
    "transactions",
    "transactional_copy",
    "transactional_fencing",
    "topic_life",
    "bad_topics",
    "created_once",
    "dry_run",
    "cluster",
]

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


@pytest.fixture(scope="module")
def ask(bootstrap: str) -> Iterator[Callable[[str], str]]:
    """Put one case to one Java process that runs them all: its answer."""
    command = [*java_project.built(), "headrace.interop.Main", bootstrap]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with asked(process) as put:
        yield put


@pytest.mark.parametrize("case", CASES)
def test_the_java_client(ask: Callable[[str], str], case: str) -> None:
    assert ask(case) == "ok"
