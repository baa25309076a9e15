"""The times of the controller's lease in Redis."""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.limits import REDIS_LEASE_MS, REDIS_LEASE_POLL_MS


class LeaseTimes(NamedTuple):
    """In milliseconds."""

    lasts: int = REDIS_LEASE_MS
    poll: int = REDIS_LEASE_POLL_MS
