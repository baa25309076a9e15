"""A broker's membership, without the broker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId
from headrace.broker.cluster.membership import Membership
from headrace.broker.core import Incarnation

INCARNATION: Final = IncarnationId(UUID(int=1))


def membership(
    metadata: Any, control: Any, *, interval_s: float = 10.0, on_end: Callable[[BaseException], None] = lambda _: None
) -> Membership:
    """Of broker 1, which follows `metadata` and asks `control`."""
    identity: Any = SimpleNamespace(
        cluster_id=ClusterId("c"), broker_id=BrokerId(1), directory_id=DirectoryId(UUID(int=2))
    )
    return Membership(
        identity=identity,
        incarnation=Incarnation(INCARNATION, BrokerEpoch(-1)),
        metadata=metadata,
        control=control,
        interval_s=interval_s,
        session_s=30.0,
        lag_max_s=30.0,
        on_contact=lambda _: None,
        follow=lambda _: None,
        is_full=lambda: False,
        states=tuple,
        now_ms=lambda: 0,
        on_end=on_end,
    )
