"""Each marker has an outcome, whatever its leader, the metadata and the broker's own stop do meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId, ProducerEpoch, ProducerId
from headrace.broker.kit.lease import Lease
from headrace.broker.transactions import markers
from headrace.broker.transactions.markers import MarkerSender
from headrace.broker.transactions.marking import MarkerWriter
from headrace.coordinators.transactions.events import MarkersSettled, SendMarkers
from headrace.coordinators.transactions.model import Producer, TransactionVersion
from headrace.coordinators.values import NamedPartition
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.controller.test_brokers import fence, register, with_topic
from tests.net.scripted_broker import Answer, ScriptedBroker, scripted_broker

HERE, THERE, ELSEWHERE = BrokerId(1), BrokerId(2), BrokerId(3)
PARTITION = NamedPartition("t", 0)
NOWHERE = NamedPartition("gone", 0)
DEADLINE_S = 150.0


def led_by(*replicas: int) -> MetadataImage:
    """Topic t, of one partition, led by the first of these."""
    image = EMPTY_IMAGE
    for broker in (HERE, THERE, ELSEWHERE):
        image = register(image, broker)
    return with_topic(image, replicas)


def decision(number: int, *partitions: NamedPartition, producer: int = 7) -> SendMarkers:
    return SendMarkers(
        number=number,
        producer=Producer(ProducerId(producer), ProducerEpoch(0)),
        commit=True,
        coordinator_epoch=3,
        version=TransactionVersion.TV1,
        partitions=frozenset(partitions),
    )


Outcome = tuple[int, dict[NamedPartition, ErrorCode], frozenset[NamedPartition]]
"""The number of the decision, the partitions' errors, and those that are gone."""


class World:
    """A sender on broker 1, which leads nothing. `image` and `addresses` may be changed."""

    def __init__(self) -> None:
        self.image = led_by(THERE, ELSEWHERE)
        self.addresses: dict[int, Address] = {}
        self.settled: list[MarkersSettled] = []
        self.changed = asyncio.Event()
        self.bugs: list[BaseException] = []
        self.renewed = asyncio.Event()
        """A heartbeat is answered once it is set."""
        self.looked = asyncio.Event()
        """A heartbeat was sent."""
        self.lease = Lease(60.0, self._heartbeat)
        self.sender = MarkerSender(
            node=HERE,
            image=lambda: self.image,
            address_of=lambda broker: self.addresses.get(broker),
            writer=cast("MarkerWriter", None),  # for partitions that are led here
            lease=self.lease,
            on_bug=self.bugs.append,
        )

    async def _heartbeat(self) -> None:
        asked_at = asyncio.get_running_loop().time()
        self.looked.set()
        await self.renewed.wait()
        self.lease.extend(asked_at)

    def send(self, effect: SendMarkers, is_over: Callable[[], bool] = lambda: False) -> None:
        def settled(outcome: MarkersSettled) -> None:
            self.settled.append(outcome)
            self.changed.set()

        self.sender.send(effect, settled, is_over)

    async def outcomes(
        self, count: int
    ) -> list[tuple[int, dict[NamedPartition, ErrorCode], frozenset[NamedPartition]]]:
        """Once there are so many."""
        while len(self.settled) < count:
            self.changed.clear()
            await self.changed.wait()
        return [(each.number, dict(each.errors), each.gone) for each in self.settled]


@asynccontextmanager
async def working() -> AsyncIterator[World]:
    world = World()
    async with asyncio.timeout(DEADLINE_S):
        try:
            yield world
        finally:
            await world.sender.stop()
    assert world.bugs == []


def answer(*codes: ErrorCode) -> Callable[[Any, WriteTxnMarkersRequest], WriteTxnMarkersResponse]:
    """To the requests in turn, the last one to all others."""
    left = list(codes)

    def answered(_: Any, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        code = left.pop(0) if len(left) > 1 else left[0]
        return WriteTxnMarkersResponse(
            tuple(
                WritableTxnMarkerResult(
                    marker.producer_id,
                    tuple(
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            tuple(WritableTxnMarkerPartitionResult(at, code) for at in topic.partition_indexes),
                        )
                        for topic in marker.topics
                    ),
                )
                for marker in request.markers
            )
        )

    return answered


def asked(broker: ScriptedBroker) -> list[int]:
    """The producers of the markers that it was asked to write, request by request."""
    requests = [request for header, request in broker.requests if header.api_key == ApiKey.WRITE_TXN_MARKERS]
    return [marker.producer_id for request in requests for marker in request.markers]


@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
async def test_the_leaders_answer_is_the_outcome_a_refusal_too(code: ErrorCode) -> None:
    async with scripted_broker({ApiKey.WRITE_TXN_MARKERS: answer(code)}) as leader, working() as world:
        world.addresses[THERE] = leader.address
        world.send(decision(4, PARTITION))
        assert await world.outcomes(1) == [(4, {PARTITION: code}, frozenset())]


async def test_a_new_leader_is_asked_after_a_change() -> None:
    """The old one says that it is not; the sender asks whoever leads when it is asked again."""
    async with (
        scripted_broker({ApiKey.WRITE_TXN_MARKERS: answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)}) as old,
        scripted_broker({ApiKey.WRITE_TXN_MARKERS: answer(ErrorCode.NONE)}) as new,
        working() as world,
    ):
        world.addresses |= {THERE: old.address, ELSEWHERE: new.address}
        world.send(decision(1, PARTITION))
        assert await world.outcomes(1) == [(1, {PARTITION: ErrorCode.NOT_LEADER_OR_FOLLOWER}, frozenset())]
        world.image = fence(world.image, THERE)
        world.send(decision(1, PARTITION))
        assert (await world.outcomes(2))[1] == (1, {PARTITION: ErrorCode.NONE}, frozenset())
        assert (asked(old), asked(new)) == ([7], [7])


async def test_a_link_that_is_cut_is_no_answer_and_the_next_marker_gets_another_link() -> None:
    def silent(_: Any, __: Any) -> Any:
        raise ConnectionResetError("the leader dies with the request")

    async with scripted_broker({ApiKey.WRITE_TXN_MARKERS: silent}) as leader, working() as world:
        world.addresses[THERE] = leader.address
        world.send(decision(1, PARTITION))
        assert await world.outcomes(1) == [(1, {PARTITION: ErrorCode.REQUEST_TIMED_OUT}, frozenset())]
        leader.answers[ApiKey.WRITE_TXN_MARKERS] = answer(ErrorCode.NONE)
        world.send(decision(1, PARTITION))
        assert (await world.outcomes(2))[1][1] == {PARTITION: ErrorCode.NONE}
        assert leader.connections == 2


def offering(lowest: int, highest: int) -> Callable[[Any, Any], ApiVersionsResponse]:
    """ApiVersions of a broker that takes these versions of markers."""
    return lambda *_: ApiVersionsResponse(api_keys=(ApiVersion(ApiKey.WRITE_TXN_MARKERS, lowest, highest),))


@pytest.mark.parametrize(("offered", "sent"), [((1, 1), 1), ((1, 2), 2), ((2, 7), 2)])
async def test_a_marker_goes_out_in_the_highest_version_that_both_know(offered: tuple[int, int], sent: int) -> None:
    scripts: dict[int, Answer] = {
        ApiKey.API_VERSIONS: offering(*offered),
        ApiKey.WRITE_TXN_MARKERS: answer(ErrorCode.NONE),
    }
    async with scripted_broker(scripts) as leader, working() as world:
        world.addresses[THERE] = leader.address
        for number in range(3):
            world.send(decision(number, PARTITION))
            assert (await world.outcomes(number + 1))[-1][1] == {PARTITION: ErrorCode.NONE}
        versions = [(header.api_key, header.api_version) for header, _ in leader.requests]
        assert versions == [(ApiKey.API_VERSIONS, 4), *[(ApiKey.WRITE_TXN_MARKERS, sent)] * 3]


@pytest.mark.parametrize("offered", [(0, 0), (3, 7)])
async def test_a_leader_that_knows_no_such_marker_is_named_once_for_each_link(offered: tuple[int, int]) -> None:
    scripts: dict[int, Answer] = {
        ApiKey.API_VERSIONS: offering(*offered),
        ApiKey.WRITE_TXN_MARKERS: answer(ErrorCode.NONE),
    }
    async with scripted_broker(scripts) as leader, working() as world:
        world.addresses[THERE] = leader.address
        with capture_logs() as lines:
            for number in range(3):
                world.send(decision(number, PARTITION))
                assert (await world.outcomes(number + 1))[-1][1] == {PARTITION: ErrorCode.REQUEST_TIMED_OUT}
        assert [line.get("reason") for line in lines] == [
            f"The broker at {leader.address} offers WRITE_TXN_MARKERS in versions {offered[0]} to {offered[1]}, "
            "but this side speaks 1 to 2."
        ]
        assert asked(leader) == []


async def test_an_answer_that_lacks_a_partition_is_none_of_it() -> None:
    async with (
        scripted_broker({ApiKey.WRITE_TXN_MARKERS: lambda *_: WriteTxnMarkersResponse(())}) as leader,
        working() as world,
    ):
        world.addresses[THERE] = leader.address
        world.send(decision(1, PARTITION))
        assert await world.outcomes(1) == [(1, {PARTITION: ErrorCode.REQUEST_TIMED_OUT}, frozenset())]


async def test_markers_of_a_shard_that_is_given_up_are_not_sent_and_hold_up_nobody() -> None:
    entered, go = asyncio.Event(), asyncio.Event()
    written = answer(ErrorCode.NONE)

    async def slow(header: Any, request: Any) -> Any:
        entered.set()
        await go.wait()
        return written(header, request)

    async with scripted_broker({ApiKey.WRITE_TXN_MARKERS: slow}) as leader, working() as world:
        world.addresses[THERE] = leader.address
        world.send(decision(1, PARTITION, producer=7))
        await entered.wait()  # one request at a time: the others wait behind it
        world.send(decision(2, PARTITION, producer=8), lambda: True)
        world.send(decision(3, PARTITION, producer=9))
        go.set()
        assert [number for number, _, _ in await world.outcomes(2)] == [1, 3]
        assert asked(leader) == [7, 9]


async def test_a_partition_is_gone_only_once_the_controller_has_confirmed_the_image() -> None:
    async with working() as world:
        world.send(decision(5, NOWHERE))
        await world.looked.wait()
        assert world.settled == []
        world.renewed.set()
        assert await world.outcomes(1) == [(5, {}, frozenset({NOWHERE}))]


async def test_a_partition_that_the_image_did_not_have_yet_is_not_gone() -> None:
    async with working() as world:
        complete, world.image = world.image, EMPTY_IMAGE
        world.send(decision(5, PARTITION))
        await world.looked.wait()
        world.image = complete
        world.renewed.set()
        assert await world.outcomes(1) == [(5, {PARTITION: ErrorCode.LEADER_NOT_AVAILABLE}, frozenset())]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stop_while_looking_leaves_no_marker_without_an_outcome(begun: bool) -> None:
    async with working() as world:
        world.send(decision(5, NOWHERE))
        if begun:
            await world.looked.wait()
        await world.sender.stop()
        assert await world.outcomes(1) == [(5, {NOWHERE: ErrorCode.REQUEST_TIMED_OUT}, frozenset())]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stop_while_sending_leaves_no_marker_without_an_outcome(begun: bool) -> None:
    entered = asyncio.Event()

    def silent(_: Any, __: Any) -> None:
        entered.set()

    async with scripted_broker({ApiKey.WRITE_TXN_MARKERS: silent}) as leader, working() as world:
        world.addresses[THERE] = leader.address
        world.send(decision(1, PARTITION))
        if begun:
            await entered.wait()
        world.send(decision(2, PARTITION, producer=8))  # it waits behind the first
        await world.sender.stop()
        lost = {PARTITION: ErrorCode.REQUEST_TIMED_OUT}
        assert sorted(await world.outcomes(2), key=lambda each: each[0]) == [
            (1, lost, frozenset()),
            (2, lost, frozenset()),
        ]
        world.send(decision(3, PARTITION))
        world.send(decision(4, NOWHERE))
        assert [number for number, _, _ in (await world.outcomes(4))[2:]] == [3, 4]


async def test_more_than_one_request_takes_are_sent_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MARKERS_PER_REQUEST_MAX", 2)
    async with scripted_broker({ApiKey.WRITE_TXN_MARKERS: answer(ErrorCode.NONE)}) as leader, working() as world:
        world.addresses[THERE] = leader.address
        for number in range(5):
            world.send(decision(number, PARTITION, producer=number))
        assert sorted(number for number, _, _ in await world.outcomes(5)) == list(range(5))
        requests = [request for header, request in leader.requests if header.api_key == ApiKey.WRITE_TXN_MARKERS]
        assert [len(request.markers) for request in requests] == [2, 2, 1]


async def test_a_leader_without_an_address_is_no_answer() -> None:
    async with working() as world:
        world.send(decision(1, PARTITION))
        assert await world.outcomes(1) == [(1, {PARTITION: ErrorCode.REQUEST_TIMED_OUT}, frozenset())]


async def test_a_partition_without_a_leader_has_an_outcome_at_once() -> None:
    async with working() as world:
        world.image = fence(fence(world.image, THERE), ELSEWHERE)
        world.send(decision(1, PARTITION))
        assert world.settled[0].errors == {PARTITION: ErrorCode.LEADER_NOT_AVAILABLE}
