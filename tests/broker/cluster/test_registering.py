"""A broker that is registered and does not hear so says that it waits, and goes on once it does."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Coroutine
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId
from headrace.base.limits import REGISTRATION_LATE_MS_MAX, REGISTRATION_TOLD_MS, REGISTRATIONS_LATE_MAX
from headrace.broker.cluster.membership import Membership
from headrace.broker.home.lineage import Superseded
from headrace.controller.brokers import register_broker
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import EMPTY_IMAGE
from headrace.metadata.values import Engine
from headrace.sim.loop import VirtualLoop
from tests.broker.alone import INCARNATION, membership

PLAYED_S: Final = 600
"""Virtual seconds."""


def image_of(me: Any, *, index: int = 1, doubts: int = 0) -> Any:
    """An image in which this broker is registered as `me`; None: it is not."""
    brokers = {} if me is None else {BrokerId(1): me}
    return SimpleNamespace(brokers=brokers, missing_listeners=dict, index=index, doubts=doubts, shares_logs=False)


class Quorum:
    """Takes the registration, and tells of it when it is told to."""

    image = EMPTY_IMAGE
    lineage = None
    failure: Exception | None = None
    asked = 0

    def subscribe(self, tell: Any) -> None:
        self.tell = tell

    async def submit(self, ask: Any, **_: Any) -> BrokerEpoch:
        self.asked += 1
        return BrokerEpoch(7)


async def registered(quorum: Quorum, ends: list[BaseException]) -> tuple[Membership, Any]:
    """A broker that has heard of its registration, and the image that told it. `ends` gets the reasons to stop."""
    member = membership(quorum, quorum, on_end=ends.append)
    registering = asyncio.ensure_future(member.register([], None))
    await asyncio.sleep(0)
    there = image_of(SimpleNamespace(incarnation=INCARNATION, epoch=BrokerEpoch(7)))
    quorum.tell(ImageDelta(EMPTY_IMAGE, there))
    await registering
    return member, there


def played(work: Coroutine[Any, Any, None]) -> None:
    """Run it in virtual time."""
    loop = VirtualLoop(random.Random(1))
    loop.run_until_complete(asyncio.wait_for(work, PLAYED_S))
    loop.workers.close()
    loop.close()


def test_who_waits_for_its_registration_says_so() -> None:
    async def work() -> None:
        quorum = Quorum()
        member = membership(quorum, quorum)
        with capture_logs() as told:
            registering = asyncio.ensure_future(member.register([], None))
            await asyncio.sleep(2.5 * REGISTRATION_TOLD_MS / 1000)
            assert not registering.done()
            assert quorum.asked == 3, "it may have been removed, from the quorum too, before it heard of anything"
            known = SimpleNamespace(incarnation=INCARNATION, epoch=BrokerEpoch(7))
            after = image_of(known)
            quorum.tell(ImageDelta(EMPTY_IMAGE, after))
            await registering
        assert member._incarnation.epoch == 7
        assert [each["event"] for each in told] == ["registered, and waits for the quorum's log to tell"] * 2

    played(work())


def test_a_broker_of_another_engine_gives_up_with_the_reason() -> None:
    async def work() -> None:
        cluster = register_broker(
            EMPTY_IMAGE,
            cluster_id=ClusterId("c"),
            broker_id=BrokerId(9),
            directory_id=DirectoryId(UUID(int=9)),
            endpoints=(),
            engine=Engine.REDIS,
        )
        image = EMPTY_IMAGE.replay(cluster.events, index=1)

        class Controller(Quorum):
            async def submit(self, ask: Any, **_: Any) -> Any:
                wanted = {each.name: getattr(ask, each.name) for each in fields(ask) if each.name != "lineage"}
                return register_broker(image, **wanted).result

        controller = Controller()
        with pytest.raises(UsageError, match="start it with --engine redis"):
            await membership(controller, controller).register([], None)
        told = asyncio.ensure_future(membership(controller, controller).register([], None, engine=Engine.REDIS))
        await asyncio.sleep(0)
        assert not told.done(), "it waits for its registration"
        told.cancel()

    asyncio.run(work())


def test_a_broker_whose_metadata_fails_meanwhile_does_not_wait_for_ever() -> None:
    """As where it hears then that the quorum was recovered without it: it has to say so, and end."""

    async def work() -> None:
        quorum = Quorum()
        member = membership(quorum, quorum)
        registering = asyncio.ensure_future(member.register([], None))
        await asyncio.sleep(0)
        quorum.failure = Superseded("it was recovered")
        with pytest.raises(Superseded):
            await registering
        becoming = asyncio.ensure_future(member.become_ready())
        with pytest.raises(Superseded):
            await becoming

    played(work())


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_broker_whose_registration_is_lost_registers_again_and_one_that_was_removed_stops(is_lost: bool) -> None:
    async def work() -> None:
        quorum, ends = Quorum(), list[BaseException]()
        member, there = await registered(quorum, ends)
        gone = image_of(None, index=9, doubts=int(is_lost))
        quorum.tell(ImageDelta(there, gone))
        await asyncio.sleep(0)
        if not is_lost:
            assert "was removed" in str(ends[0])
            return
        assert quorum.asked == 2
        quorum.tell(ImageDelta(gone, gone))
        quorum.tell(ImageDelta(gone, image_of(SimpleNamespace(incarnation=INCARNATION, epoch=BrokerEpoch(10)))))
        await asyncio.sleep(2 * REGISTRATION_TOLD_MS / 1000)
        assert (quorum.asked, ends, member._incarnation.epoch) == (2, [], 10)

    played(work())


@pytest.mark.parametrize("directory", [2, 3], ids=["of its own directory", "of another directory"])
@pytest.mark.parametrize("after_s", [1.0, REGISTRATION_LATE_MS_MAX / 1000], ids=["soon", "long after"])
def test_a_late_request_of_its_dead_process_does_not_end_a_broker(directory: int, after_s: float) -> None:
    """A network may keep the request of a process that was killed until the next one is registered."""

    async def work() -> None:
        quorum, ends = Quorum(), list[BaseException]()
        member, there = await registered(quorum, ends)
        await asyncio.sleep(after_s)
        other: Any = SimpleNamespace(incarnation=UUID(int=99), epoch=8, directory_id=DirectoryId(UUID(int=directory)))
        displaced = image_of(other, index=8)
        quorum.tell(ImageDelta(there, displaced))
        await asyncio.sleep(0)
        if directory == 3 or after_s > 1:
            assert "Another process has registered" in str(ends[0])
            assert quorum.asked == 1
            return
        assert (quorum.asked, ends) == (2, [])
        again = SimpleNamespace(incarnation=INCARNATION, epoch=BrokerEpoch(9))
        quorum.tell(ImageDelta(displaced, image_of(again, index=9)))
        assert member._incarnation.epoch == 9

    played(work())


def test_two_processes_with_a_copy_of_one_directory_do_not_displace_each_other_for_ever() -> None:
    async def work() -> None:
        quorum, ends = Quorum(), list[BaseException]()
        _, before = await registered(quorum, ends)
        other: Any = SimpleNamespace(incarnation=UUID(int=99), epoch=8, directory_id=DirectoryId(UUID(int=2)))
        for index in itertools.count(8, 2):
            displaced = image_of(other, index=index)
            quorum.tell(ImageDelta(before, displaced))
            await asyncio.sleep(0)
            if ends:
                break
            before = image_of(SimpleNamespace(incarnation=INCARNATION, epoch=BrokerEpoch(index + 1)), index=index + 1)
            quorum.tell(ImageDelta(displaced, before))
            await asyncio.sleep(0)
        assert quorum.asked == 1 + REGISTRATIONS_LATE_MAX
        assert "Another process has registered" in str(ends[0])

    played(work())
