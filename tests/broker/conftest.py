"""Brokers of these tests are given time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.patience import patient


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    with patient():
        yield
