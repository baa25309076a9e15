"""Waits of the broker after which clients ask again: tests ask once, and so they are given the time that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

WAITS: Final = (
    "headrace.broker.shards.coordinator.GROUPS_READY_MS_MAX",
    "headrace.broker.requests.visibility.OWN_FLUSH_WAIT_MS_MAX",
)
PATIENCE_MS: Final = 60_000


@pytest.fixture(scope="module", autouse=True)
def _patient_brokers() -> Iterator[None]:
    """A test of one of these waits sets it by itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in WAITS:
            patch.setattr(name, PATIENCE_MS)
        yield
