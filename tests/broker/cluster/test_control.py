"""The path to the controller, from a broker that knows no leader.

It covers requests that are sent twice, and those that never are; the next broker that is asked; and the error when none
answers. The other brokers are scripted, all of this one is real.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.addresses import Address
from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, ProducerId
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.controller_role import ControllerRole
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.quorum.commit_log import metadata_on_raft
from headrace.broker.system import SystemClock
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.brokers import AllocateProducerIds, ChangeVoter, Heartbeat, RemoveBroker
from headrace.controller.asks.carried import Answer, decode_ask, encode_answer, encode_leader
from headrace.controller.asks.configs import AlterConfigs
from headrace.controller.asks.topics import DeleteTopics, TopicAnswer
from headrace.controller.decision import Refusal
from headrace.controller.topic_changes import TopicRef
from headrace.net.client.connection import Connection
from headrace.raft.membership import Membership, Peer
from headrace.storage.disk import LocalDisk
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tests import loops
from tests.net.scripted_broker import ScriptedBroker, scripted_broker

CLUSTER = ClusterId("c")
NODE = BrokerId(7)
IDS = AllocateProducerIds(broker_id=NODE, broker_epoch=BrokerEpoch(1))
DELETION = DeleteTopics(topics=(TopicRef(name="t"),))
WAIT_MS = 300
"""For a refusal, which takes all of it."""
GOODBYE_MS = 3_000
"""For an answer that comes only once all of it is over."""
PATIENT_MS = 60_000
"""For an answer that comes."""
NOBODY = Address("127.0.0.1", 9)


@asynccontextmanager
async def control(directory: Path, *others: Address) -> AsyncIterator[Control]:
    """Of a broker that joins and has heard of nobody."""

    def on_bug(error: BaseException) -> None:
        raise AssertionError from error

    async def settled() -> None:
        pass

    me = Peer(NODE, DirectoryId(uuid.UUID(int=1)))
    metadata = metadata_on_raft(
        disk=LocalDisk(), directory=directory / "metadata", me=me, random=Random(1), voters=Membership()
    )
    await metadata.start()
    controller = ControllerService(
        node=NODE, cluster_id=CLUSTER, configs={}, metadata=metadata, clock=SystemClock(), on_bug=on_bug
    )
    role = ControllerRole(metadata, [controller])
    role.start()
    made = Control(
        metadata=metadata, controller=controller, address_of=lambda _: None, others=lambda: others, settled=settled
    )
    try:
        yield made
    finally:
        await made.stop()
        role.stop()
        await metadata.stop()


def answering(reply: Callable[[Ask[Any], int], EnvelopeResponse | None]) -> Callable[[Any, EnvelopeRequest], Any]:
    """A script: `reply` to the ask, which is the so-many-eth; None: no answer, and the connection ends."""
    count = 0

    async def script(_: Any, request: EnvelopeRequest) -> EnvelopeResponse:
        nonlocal count
        count += 1
        cluster_id, ask = decode_ask(request.request_data)
        assert cluster_id == CLUSTER
        response = reply(ask, count)
        if response is None:
            raise ConnectionError("the script says so")
        return response

    return script


def told(ask: Ask[Any], result: Any, *, index: int = 0) -> EnvelopeResponse:
    return EnvelopeResponse(response_data=encode_answer(ask, Answer(index=index, result=result)), error_code=0)


def not_controller(leader: Address | None) -> EnvelopeResponse:
    return EnvelopeResponse(response_data=encode_leader(leader), error_code=ErrorCode.NOT_CONTROLLER)


def asked(broker: ScriptedBroker) -> int:
    return sum(header.api_key == ApiKey.ENVELOPE for header, _ in broker.requests)


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


def scripted(reply: Callable[[Ask[Any], int], EnvelopeResponse | None]) -> Any:
    return scripted_broker({int(ApiKey.ENVELOPE): answering(reply)})


def test_who_is_not_the_controller_says_who_is_and_that_one_is_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            scripted(lambda ask, _: told(ask, (ProducerId(5), 10))) as leader,
            scripted(lambda _, __: not_controller(leader.address)) as other,
            control(tmp_path, NOBODY, other.address) as here,
        ):
            assert await here.submit(IDS, wait_ms=5_000) == (5, 10)
            assert asked(leader) == 1

    run(work())


def test_what_may_be_done_twice_is_asked_again_after_a_lost_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            scripted(lambda ask, count: None if count == 1 else told(ask, (ProducerId(5), 10))) as other,
            control(tmp_path, other.address) as here,
        ):
            assert await here.submit(IDS, wait_ms=5_000) == (5, 10)
            assert asked(other) == 2

    run(work())


def test_what_may_not_be_done_twice_is_sent_once_and_its_outcome_is_unknown(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(lambda _, __: None) as other, control(tmp_path, other.address) as here:
            refusal = await here.submit(DELETION, wait_ms=5_000)
            assert isinstance(refusal, Refusal)
            assert refusal.code is ErrorCode.REQUEST_TIMED_OUT
            assert refusal.code.retriable
            assert asked(other) == 1

    run(work())


def test_what_may_have_been_done_is_never_called_not_done(tmp_path: Path) -> None:
    """It was sent, the answer was lost, and then nobody was the controller until the time was over."""

    async def work() -> None:
        async with (
            scripted(lambda _, count: None if count == 1 else not_controller(None)) as other,
            control(tmp_path, other.address) as here,
        ):
            refusal = await here.submit(
                IDS, wait_ms=10 * WAIT_MS
            )  # time for the first try to be sent, however busy the machine
            assert isinstance(refusal, Refusal)
            assert refusal.code is ErrorCode.REQUEST_TIMED_OUT
            assert "not known" in refusal.message

    run(work())


@pytest.mark.parametrize(
    "ask",
    [
        RemoveBroker(broker_id=NODE),
        ChangeVoter(broker_id=NODE, directory_id=None, voter=True),
        AlterConfigs(resources=()),
    ],
)
def test_what_would_be_refused_or_do_harm_once_it_is_done_is_sent_once(tmp_path: Path, ask: Ask[Any]) -> None:
    async def work() -> None:
        no = Refusal(ErrorCode.DUPLICATE_VOTER, "It is one already.")
        async with (
            scripted(lambda ask, count: None if count == 1 else told(ask, no)) as other,
            control(tmp_path, other.address) as here,
        ):
            refusal = await here.submit(ask, wait_ms=5_000)
            assert isinstance(refusal, Refusal)
            assert refusal.code is ErrorCode.REQUEST_TIMED_OUT
            assert asked(other) == 1

    run(work())


def test_what_may_not_be_done_twice_is_sent_only_while_there_is_time_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is the controller while there is time. Then it was surely not done, and the client asks again."""
    given = list[int]()
    request = Connection.request

    async def noted(self: Connection, key: ApiKey, message: Any, **more: Any) -> Any:
        if key is ApiKey.ENVELOPE:
            given.append(more["timeout_ms"])
        return await request(self, key, message, **more)

    monkeypatch.setattr(Connection, "request", noted)

    async def work() -> None:
        async with scripted(lambda _, __: not_controller(None)) as other, control(tmp_path, other.address) as here:
            refusal = await here.submit(DELETION, wait_ms=4 * WAIT_MS)
            assert isinstance(refusal, Refusal)
            assert refusal.code is ErrorCode.NOT_CONTROLLER
            assert all(each >= 2 * WAIT_MS for each in given)

    run(work())


def test_one_who_has_little_time_takes_nobody_else_s_answer_away(tmp_path: Path) -> None:
    """A heartbeat gives up early. It shares its connection with a request that must not be done twice."""

    async def work() -> None:
        arrived, late = asyncio.Queue[Ask[Any]](), asyncio.Event()
        deleted = (TopicAnswer(name="t"),)

        async def script(_: Any, request: EnvelopeRequest) -> EnvelopeResponse:
            _, ask = decode_ask(request.request_data)
            arrived.put_nowait(ask)
            await late.wait()
            return told(ask, deleted if isinstance(ask, DeleteTopics) else (ProducerId(5), 10))

        async with (
            scripted_broker({int(ApiKey.ENVELOPE): script}) as other,
            control(tmp_path, other.address) as here,
        ):
            hurried = asyncio.create_task(here.submit(IDS, wait_ms=10 * WAIT_MS))
            await arrived.get()
            patient = asyncio.create_task(here.submit(DELETION, wait_ms=PATIENT_MS))
            refusal = await hurried
            assert isinstance(refusal, Refusal)
            assert "did not answer" in refusal.message
            assert not patient.done()
            late.set()
            assert await patient == deleted
            assert isinstance(await here.submit(IDS, wait_ms=PATIENT_MS), tuple), "by another connection"

    run(work())


def test_a_connection_that_was_given_up_ends_with_the_last_who_waits_for_it(tmp_path: Path) -> None:
    """Also where that one goes away."""

    async def work() -> None:
        arrived, never = asyncio.Event(), asyncio.Event()

        async def script(_: Any, __: EnvelopeRequest) -> None:
            arrived.set()
            await never.wait()

        async with (
            scripted_broker({int(ApiKey.ENVELOPE): script}) as other,
            control(tmp_path, other.address) as here,
        ):
            made = list[Connection]()
            put = Connection.connection_made

            def noted(self: Connection, transport: asyncio.BaseTransport) -> None:
                made.append(self)
                put(self, transport)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Connection, "connection_made", noted)
                hurried = asyncio.create_task(here.submit(IDS, wait_ms=10 * WAIT_MS))
                await arrived.wait()
            patient = asyncio.create_task(here.submit(DELETION, wait_ms=PATIENT_MS))
            await hurried
            first = made[0]
            assert (first.is_open, first.lost) == (False, None)
            patient.cancel()
            await asyncio.gather(patient, return_exceptions=True)
            assert first.lost is not None
            never.set()

    run(work())


def test_it_may_be_sent_again_where_it_was_surely_not_received(tmp_path: Path) -> None:
    async def work() -> None:
        deleted = (TopicAnswer(name="t"),)
        async with (
            scripted(lambda ask, count: not_controller(None) if count == 1 else told(ask, deleted)) as other,
            control(tmp_path, NOBODY, other.address) as here,
        ):
            assert await here.submit(DELETION, wait_ms=5_000) == deleted

    run(work())


def test_where_there_is_no_controller_it_is_refused_in_time_with_an_error_that_is_retried(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            scripted(lambda _, __: not_controller(None)) as other,
            control(tmp_path / "a", other.address) as here,
            control(tmp_path / "b") as alone,
        ):
            for each in (here, alone):
                async with asyncio.timeout(150):
                    refusal = await each.submit(IDS, wait_ms=WAIT_MS)
                assert isinstance(refusal, Refusal)
                assert refusal.code is ErrorCode.NOT_CONTROLLER
                assert refusal.code.retriable

    run(work())


@pytest.mark.parametrize(("index", "is_taken"), [(0, True), (1, False)])
def test_a_heartbeat_counts_once_what_was_decided_has_come_here(tmp_path: Path, index: int, is_taken: bool) -> None:
    """Else a broker that was fenced and replaced, and has heard of neither, would take itself for the leader."""

    async def work() -> None:
        beat = Heartbeat(broker_id=NODE, broker_epoch=BrokerEpoch(1), ready=True)
        async with (
            scripted(lambda ask, _: told(ask, True, index=index)) as other,
            control(tmp_path, other.address) as made,
        ):
            answer = await made.submit(beat, wait_ms=PATIENT_MS if is_taken else WAIT_MS)
            assert (answer is True) == is_taken
            assert isinstance(answer, Refusal) != is_taken
            goodbye = replace(beat, ready=False, stopping=True)
            patience_ms = PATIENT_MS if is_taken else GOODBYE_MS
            assert await made.submit(goodbye, wait_ms=patience_ms) is True, "it is taken whatever was heard here"

    run(work())


def test_an_answer_that_is_none_is_not_believed(tmp_path: Path) -> None:
    async def work() -> None:
        junk = EnvelopeResponse(response_data=b"{}", error_code=0)
        async with (
            scripted(lambda ask, count: junk if count == 1 else told(ask, (ProducerId(5), 10))) as other,
            control(tmp_path, other.address) as here,
        ):
            assert await here.submit(IDS, wait_ms=5_000) == (5, 10)
            refusal = await here.submit(DELETION, wait_ms=WAIT_MS)
            assert isinstance(refusal, Refusal)

    run(work())


def test_two_that_take_each_other_for_the_controller_are_not_asked_in_turns_without_a_pause(tmp_path: Path) -> None:
    async def work() -> None:
        addresses: dict[str, Address] = {}
        async with (
            scripted(lambda _, __: not_controller(addresses["two"])) as one,
            scripted(lambda _, __: not_controller(addresses["one"])) as two,
            control(tmp_path, one.address) as here,
        ):
            addresses |= {"one": one.address, "two": two.address}
            assert isinstance(await here.submit(IDS, wait_ms=WAIT_MS), Refusal)
            assert asked(one) + asked(two) < 30

    run(work())


def test_what_is_too_large_to_be_carried_is_refused_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        names = tuple(TopicRef(name="t" * 249) for _ in range(20_000))
        async with scripted(lambda _, __: None) as other, control(tmp_path, other.address) as here:
            refusal = await here.submit(DeleteTopics(topics=names))
            assert isinstance(refusal, Refusal)
            assert "split it" in refusal.message
            assert asked(other) == 0

    run(work())
