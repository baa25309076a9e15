"""A server for drivers of the metadata, which keeps all that it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.storage.redis.conftest import Start
from tests.storage.redis.metadata.nodes import Join


@pytest.fixture
async def join(start: Start) -> AsyncIterator[Join]:
    joining = Join(start("--appendonly", "yes", "--appendfsync", "always", tcp=True))
    yield joining
    await joining.close()
