"""Existing consoles: the calls that kafbat UI and AKHQ make, replayed page by page with Kafka's own Admin client.

Neither console can be had here: both are published as images and archives alone, and their builds need the jars of
Confluent's own repository. Consoles.java has their calls, as their sources make them: kafbat UI's `ReactiveAdminClient`
and emitters, AKHQ's `AbstractKafkaWrapper` and repositories. No call fails, and no broker has anything to warn of.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
import structlog

from headrace.testing import ClusterThread
from tests.interop import java_project
from tests.interop.support.asking import asked
from tests.tiers import long_only

PAGES: Final = (
    "console_opens",
    "console_brokers",
    "console_topics",
    "console_records",
    "console_groups",
    "console_changes_topics",
    "console_changes_groups",
    "console_access",
)

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=long_only)], ids=["open", "secure"])
def test_every_page_opens_and_no_broker_warns(secure: bool, tmp_path: Path) -> None:
    command = [*java_project.built(), "headrace.interop.Main"]
    with ClusterThread(secure=secure, data=tmp_path / "data") as cluster, structlog.testing.capture_logs() as logs:
        login = cluster.clients.login
        properties = [] if login is None else [str(login.properties)]
        process = subprocess.Popen(
            [*command, cluster.bootstrap, *properties], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with asked(process) as put:
            told = {page: put(page) for page in PAGES}
        cluster.stop_brokers(cluster.running[-1])
        heard = list(logs)
    assert {page: answer for page, answer in told.items() if answer != "ok"} == {}
    assert heard, "the brokers are heard here"
    assert [each for each in heard if each["log_level"] not in ("debug", "info")] == []
