"""Brokers of earlier releases, as far as today's code can be one: they register the levels that those knew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.broker.cluster import membership
from tests.broker.clusters import Cluster


@contextmanager
def of_0_1_0() -> Iterator[None]:
    """Brokers that start in this block say the level of that release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "METADATA_LEVEL", 0)
        yield


async def upgrade(cluster: Cluster, *brokers: int) -> None:
    """Stop each broker and start it as today's release, one after the other."""
    for broker in brokers:
        await cluster.stop(broker)
        await cluster.start(broker)
