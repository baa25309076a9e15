"""What the active controller says to brokers, asked directly; its clock is the test's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.base.ids import BrokerId, ClusterId, DirectoryId, IncarnationId
from headrace.broker.duties import Duties
from headrace.broker.metadata import MetadataDriver
from headrace.controller.asks import RegisterBroker
from headrace.controller.decision import Refusal
from headrace.metadata.values import Endpoint
from headrace.raft.membership import Peer
from headrace.wire.errors import ErrorCode
from tests.broker.test_metadata_driver import DIRECTORY, NODE, SlowDisk, make

CLUSTER = ClusterId("c")


class SetClock:
    """It stands until it is set."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@asynccontextmanager
async def duties(clock: SetClock, **rest: Any) -> AsyncIterator[tuple[Duties, MetadataDriver]]:
    """Of the only voter."""

    def on_bug(error: BaseException) -> None:
        raise AssertionError from error

    metadata = make(SlowDisk(), DIRECTORY, **rest)
    await metadata.start()
    made = Duties(node=NODE, cluster_id=CLUSTER, configs={}, metadata=metadata, clock=clock, on_bug=on_bug)
    try:
        yield made, metadata
    finally:
        made.stop()
        await metadata.stop()


def registration(broker: BrokerId, directory: int, incarnation: int, port: int = 9) -> RegisterBroker:
    return RegisterBroker(
        cluster_id=CLUSTER,
        broker_id=broker,
        directory_id=DirectoryId(uuid.UUID(int=directory)),
        incarnation=IncarnationId(uuid.UUID(int=incarnation)),
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=port),),
    )


async def test_nobody_takes_the_place_of_the_controller_s_own_broker() -> None:
    """It is there, however long ago it said so: else a second process under its id takes its vote from it."""
    clock = SetClock()
    async with duties(clock) as (asked, metadata):
        epoch = await asked.answer(registration(NODE, directory=1, incarnation=1))
        assert isinstance(epoch, int)
        clock.seconds += 1_000
        await asyncio.sleep(0)
        answer = await asked.answer(registration(NODE, directory=2, incarnation=2))
        assert isinstance(answer, Refusal)
        assert answer.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert metadata.image.brokers[NODE].epoch == epoch
        assert metadata.membership.members == {Peer(NODE, DirectoryId(uuid.UUID(int=1)))}
