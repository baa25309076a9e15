"""A broker that is registered and does not hear so says that it waits, and goes on once it does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId
from headrace.broker import membership
from headrace.broker.identity import Identity
from headrace.broker.membership import Membership
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import EMPTY_IMAGE
from tests.broker.replicas import until


class Quorum:
    """Takes the registration, and tells of it when it is told to."""

    image = EMPTY_IMAGE
    failure = None

    def subscribe(self, tell: Any) -> None:
        self.tell = tell

    async def submit(self, ask: Any) -> BrokerEpoch:
        self.asked = ask
        return BrokerEpoch(7)


async def test_who_waits_for_its_registration_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REGISTRATION_TOLD_MS", 1)
    quorum, incarnation = Quorum(), IncarnationId(UUID(int=1))
    directory = DirectoryId(UUID(int=2))
    me = Membership(
        identity=Identity(cluster_id=ClusterId("c"), broker_id=BrokerId(1), directory_id=directory, voters=()),
        incarnation=incarnation,
        metadata=cast("Any", quorum),
        control=cast("Any", quorum),
        interval_s=1.0,
        session_s=9.0,
        lag_max_s=1.0,
        on_contact=lambda _: None,
        follow=lambda _: None,
        on_end=lambda _: None,
    )
    with capture_logs() as told:
        registering = asyncio.create_task(me.register([], None))
        await until(lambda: len(told) >= 2)
        assert not registering.done()
        known = SimpleNamespace(incarnation=incarnation, epoch=BrokerEpoch(7))
        after = SimpleNamespace(brokers={BrokerId(1): known}, missing_listeners=dict)
        quorum.tell(ImageDelta(EMPTY_IMAGE, cast("Any", after)))
        await registering
    assert me.epoch == 7
    assert {each["event"] for each in told} == {"registered, and waits for the quorum's log to tell"}
