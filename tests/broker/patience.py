"""Waits after which a broker or `headrace doctor` gives up, and is asked again.

Tests ask once, and so they are given the time that a busy machine takes. A test of one of these waits sets it itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import pytest

from headrace.net.client.cluster import Cluster as Client
from headrace.operations import diagnosis
from headrace.operations.finding import Finding
from tests.broker.clusters import Cluster

OF_BROKERS: Final = (
    "headrace.broker.shards.coordinator.GROUPS_READY_MS_MAX",
    "headrace.broker.requests.visibility.OWN_FLUSH_WAIT_MS_MAX",
)
OF_DOCTORS: Final = (
    "headrace.net.client.ailments.AILMENTS_TIMEOUT_MS",
    "headrace.operations.diagnosis.AILMENTS_TIMEOUT_MS",
    "headrace.operations.diagnosis.DOCTOR_ASK_MS_MAX",
    "headrace.operations.diagnosis.DOCTOR_MS_MAX",
)
PATIENCE_MS: Final = 60_000


@contextmanager
def patient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in (*OF_BROKERS, *OF_DOCTORS):
            patch.setattr(name, PATIENCE_MS)
        yield


async def findings(cluster: Cluster) -> list[Finding]:
    """Return what is wrong with the cluster, once each broker knows what the others do: any of them is asked."""
    await cluster.agree(is_carried_out=False)
    return await diagnosis.findings(partial(Client, cluster.bootstrap))
