"""Compares fetches of many partitions at once: `python -m tools.partition_fuzz --fetches --operations 1000000`.

Two sides have the same partitions, each with operations of its own, and with transactions that are open, committed and
aborted. In between, consumers send plain fetches of all of them. One side serves these by the native road, the other
one in Python. Answers have to be the same, at once or after a wait, and so has the state of all partitions.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from headrace.base.ports import Buffer
from headrace.broker.handlers import plain_fetch
from headrace.broker.kit import parking
from headrace.broker.kit.deferred import Deferred
from headrace.broker.partitions.hot import KINDS
from headrace.broker.requests.context import Services
from headrace.native import PURE, ROAD, Hot, Native, Road
from headrace.net.server.listener import Connection
from headrace.wire.apis import ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.plain_fetch import read_in_python
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.batches import Bodies
from tools.partition_fuzz.choosing import Chooser, Operation, settings_of, to
from tools.partition_fuzz.world import Clock, InlineLoop, World

PLACES: Final = (("t", 0), ("t", 1), ("u", 0))
"""Topics and indexes of a side's partitions."""
VERSIONS: Final = (9, 11, 12)
"""The first of their kinds."""
WAIT_MS: Final = 24 * 3_600_000
"""Longer than any run: whose time is over is an operation, too."""
WAITING_MAX: Final = 5
FETCH: Final = api(ApiKey.FETCH)


class CountedReads:
    """The functions of the extension. It counts what the native road takes."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self.reads = self.taken = self.with_records = self.with_aborted = 0

    def read_places(self, *arguments: Any) -> Any:
        found = self._native.read_places(*arguments)
        self.reads += 1
        self.taken += found is not None
        if found:
            self.with_records += found[1] > 0
            self.with_aborted += any(part[5] for part in found[0])
        return found

    @property
    def has_handed_back(self) -> bool:
        """Whether the twin has read what the native road may have read before: from the disk, too."""
        return self.taken < self.reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class Side:
    """The partitions on one road, and the consumers that read all of them."""

    def __init__(self, worlds: Sequence[World], loop: InlineLoop, road: Road, version: int) -> None:
        self.worlds = worlds
        self.told: list[tuple[object, ...]] = []
        self._loop = loop
        self._road = road
        self._version = version
        self._waiting: dict[int, Deferred] = {}
        self.hot: list[Hot | None] = [each.partition.hot for each in worlds]
        known: list[dict[tuple[bytes, int], object]] = []
        services = SimpleNamespace(
            authority=SimpleNamespace(is_asked=False, grants=lambda: None),
            partitions=SimpleNamespace(remember_in=known.append),
            metadata=SimpleNamespace(image=None),
            answer_bytes_max=lambda: 1 << 30,
            history=None,
        )
        self._serve = plain_fetch.shortcuts(cast("Services", services), _long_road)[version]
        read = read_in_python(memoryview(frame_of(version, dict.fromkeys(PLACES, (-1, 0, 1)))))
        assert read is not None
        for each in known:
            places = [(topic, asked[0]) for topic, entries in read.topics for asked in entries]
            each.update(zip(places, [world.partition for world in worlds], strict=True))

    def carry_out(self, at: int | None, operation: Operation) -> tuple[type | None, object]:
        """On one partition, or on all of them. Returns the answer, or what was raised."""
        with on_road(self._road):
            answer = answer_of(operation, self if at is None else self.worlds[at])
            self._loop.run_until_complete(asyncio.sleep(0))  # fetches that were woken read on
        return answer

    def fetch(self, number: int, **wanted: Any) -> object:
        """`wanted`: as for `frame_of`."""
        frame = frame_of(self._version, **wanted)

        async def served() -> object:
            return self._serve(memoryview(frame), cast("Connection", None))

        answer = self._loop.run_until_complete(served())
        if not isinstance(answer, Deferred):
            return _plain(answer)
        self._waiting[number] = answer
        answer.add_done_callback(partial(self._on_done, number))
        return "waits"

    def _on_done(self, number: int, answer: Deferred) -> None:
        del self._waiting[number]
        error = answer.exception()
        self.told.append((number, "left" if answer.cancelled() else repr(error) if error else _plain(answer.result())))

    def leave(self, number: int) -> None:
        """The connection of that consumer is lost."""
        if (answer := self._waiting.get(number)) is not None:
            answer.cancel()

    def forget_told(self) -> None:
        self.told.clear()
        for each in self.worlds:
            each.told.clear()

    def leave_all(self) -> None:
        for number in list(self._waiting):
            self.leave(number)

    def time_out(self, number: int) -> None:
        """The time of one of those that wait is over."""
        waiting = [each for each in self.worlds[0].partition.fetches if type(each) is parking.ParkedFetch]
        if waiting:
            waiting[number % len(waiting)].wake()

    @property
    def waiting(self) -> list[int]:
        return list(self._waiting)

    @property
    def fetches(self) -> list[tuple[object, ...]]:
        """Of all partitions: who is told of what becomes visible, and how much was."""
        found = [each.partition.fetches for each in self.worlds]
        return [(each._stable_told, each._withheld_bytes, [type(waiter) for waiter in each]) for each in found]

    @property
    def has_failed(self) -> bool:
        """Whether the native road has failed, and been left."""
        return any(each.partition.hot is not hot for each, hot in zip(self.worlds, self.hot, strict=True))

    @property
    def has_ended(self) -> bool:
        return any(each.partition.availability is not ErrorCode.NONE for each in self.worlds)


@contextmanager
def on_road(road: Road) -> Iterator[None]:
    """Have fetches take this road meanwhile."""
    before = ROAD
    for each in (parking, plain_fetch):
        vars(each)["ROAD"] = road
    try:
        yield
    finally:
        for each in (parking, plain_fetch):
            vars(each)["ROAD"] = before


def answer_of(operation: Operation, on: World | Side) -> tuple[type | None, object]:
    """None and the answer, or what was raised."""
    try:
        return None, operation(on)
    except AssertionError:
        return AssertionError, traceback.format_exc()
    except Exception as error:
        return type(error), str(error)


def _long_road(*_: object) -> list[Buffer]:
    return [b"the general handler answers"]


def _plain(answer: object) -> object:
    return b"".join(cast("list[Buffer]", answer)) if isinstance(answer, list) else answer


def frame_of(
    version: int,
    asked: Mapping[tuple[str, int], tuple[int, int, int]],
    *,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1,
    isolation: int = 0,
) -> bytes:
    """A fetch. `asked`: leader epoch, offset and maximum of bytes, by topic and index."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, index), (epoch, offset, limit) in asked.items():
        part = FetchPartition(
            partition=index, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=limit
        )
        topics.setdefault(topic, []).append(part)
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=bytes_min, max_bytes=bytes_max, isolation_level=isolation,
        topics=tuple(FetchTopic(topic=topic, partitions=tuple(parts)) for topic, parts in topics.items()),
    )  # fmt: skip
    assert FETCH is not None
    return b"".join(map(bytes, encode_request_frame(FETCH, version, 77, "c", request)))[4:]


class Consumers:
    """Chooses what consumers do, by the partitions that run in Python alone."""

    def __init__(self, chance: Random, side: Side) -> None:
        self._chance = chance
        self._side = side
        self._number = 0

    def next(self) -> Operation:
        chance, waiting = self._chance, self._side.waiting
        if waiting and (len(waiting) >= WAITING_MAX or chance.random() < 0.15):
            return to(Side.leave, number=chance.choice(waiting))
        if waiting and chance.random() < 0.1:
            return to(Side.time_out, number=chance.randrange(WAITING_MAX))
        self._number += 1
        places = zip(PLACES, self._side.worlds, strict=True)
        asked = {place: self._asked(world) for place, world in places if chance.random() < 0.9}
        return to(
            Side.fetch,
            number=self._number,
            asked=asked,
            wait_ms=chance.choice((0, WAIT_MS)),
            bytes_min=chance.choice((0, 1, 1, 1_000, 20_000)),
            bytes_max=chance.choice((0, 1, 300, 5_000, 1 << 20, 1 << 20)),
            isolation=chance.choice((0, 1)),
        )

    def _asked(self, world: World) -> tuple[int, int, int]:
        """Leader epoch, offset, and maximum of bytes."""
        chance, log, leader = self._chance, world.log, world.partition.isr.leader
        first, visible, end = log.log_start_offset, leader.high_watermark, log.log_end_offset
        at = chance.randint(first, max(visible, first))
        starts = sorted(log.contents.newest._batches)
        offset = chance.choice((at, at, first, visible, visible, end, *starts[-3:]))
        if chance.random() < 0.02:
            offset = chance.choice((-1, first - 1, end + 1, 1 << 62))
        epoch = leader.epoch + chance.choice((0, 0, 0, 0, 1, -1)) if chance.random() < 0.1 else -1
        return epoch, offset, chance.choice((0, -1, 1, 200, 4_000, 1 << 20, (1 << 31) - 1))


class Group:
    """The partitions of one case, on both roads."""

    def __init__(
        self, chance: Random, bodies: Bodies, loops: tuple[InlineLoop, InlineLoop], reads: CountedReads
    ) -> None:
        self._chance = chance
        self.reads = reads
        clock, fsync, version = Clock(), chance.random() < 0.6, chance.choice(VERSIONS)
        worlds: tuple[list[World], list[World]] = ([], [])
        self._choosers: list[Chooser] = []
        self.told = f"fsync={fsync} version={version}"
        for at, _ in enumerate(PLACES):
            replicas = chance.choice((1, 1, 2))
            settings, config = settings_of(chance, fsync=fsync, is_narrow=chance.random() < 0.3, replicas=replicas)
            self.told += f"\npartition {at}: {settings} {config} replicas={replicas}"
            has_hot = at > 0 or chance.random() < 0.95
            for each, loop in zip(worlds, loops, strict=True):
                world = World(
                    at, clock, loop, native=None, config=config, settings=settings, replicas=replicas, has_journal=True
                )
                each.append(world)
                if each is worlds[0] and has_hot:
                    world.partition.hot = cast("Native", reads).HotPartition(world.partition, KINDS)
            weight = chance.choice((0.0, 1.0, 3.0))
            self._choosers.append(Chooser(chance, bodies, worlds[1][-1], fsync=fsync, transactions=weight))
        self.natively = Side(worlds[0], loops[0], Road(cast("Native", reads), "native"), version)
        self.python = Side(worlds[1], loops[1], Road(None, PURE), version)
        self._consumers = Consumers(chance, self.python)

    def next(self) -> tuple[int | None, Operation]:
        """The partition, None for all, and the operation."""
        if self._chance.random() < 0.25:
            return None, self._consumers.next()
        at = self._chance.randrange(len(PLACES))
        operation = self._choosers[at].next()
        while (
            operation.func is do.break_disk
        ):  # it counts the disk's operations, and reads are not as many on each side
            operation = self._choosers[at].next()
        return at, operation
