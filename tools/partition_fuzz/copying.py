"""Compares the copy stream: `python -m tools.partition_fuzz --copies --operations 1000000`.

Two sides have partitions with a leader and a follower each. These are logs, a session, a source, and the frames between
the two. The leader meets whatever it meets in the other cases. In between, frames are delivered, lost, or changed (see
`twisting`). The follower flushes, meets faults, or follows in another epoch. One side takes the native road. Frames,
answers and the state of both have to be the same after each operation, and all files at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerEpoch, ClusterId, LeaderEpoch, Offset, TopicPartition
from headrace.broker.partitions import hot
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.following import SOUND, FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.settings import PartitionSettings
from headrace.broker.replication import copying, followers
from headrace.broker.replication.copying import Source
from headrace.broker.replication.followers import FollowerSession, Waiting
from headrace.broker.replication.sessions import Followers
from headrace.broker.replication.sources import Me
from headrace.broker.replication.throttles import BrokerThrottle
from headrace.native import PURE, ROAD, Native, Road
from headrace.replica.producers import ProducerStates
from headrace.wire.errors import ErrorCode
from tools.partition_fuzz import observed
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.batches import Bodies
from tools.partition_fuzz.choosing import Chooser, Operation, settings_of, to
from tools.partition_fuzz.fetching import answer_of
from tools.partition_fuzz.observed import Seen
from tools.partition_fuzz.twisting import Twisted, answered_otherwise, asked_less, flipped, reported_otherwise
from tools.partition_fuzz.world import NODE, REPLICAS, Clock, Events, InlineLoop, Told, World

FOLLOWER: Final = REPLICAS[1]
EPOCH: Final = BrokerEpoch(FOLLOWER * 10)
CLUSTER: Final = ClusterId("c")
TURNS: Final = 12
"""Turns of the loop after each operation."""
_FUNCTIONS: Final = ("copy_rows", "write_reports", "take_reports", "take_ready")


class CountedCopies:
    """The functions of the extension. It counts what the native road takes."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self.asked = dict.fromkeys(_FUNCTIONS, 0)
        self.taken = dict.fromkeys(_FUNCTIONS, 0)

    def _count(self, name: str, found: Any, *, is_taken: bool) -> Any:
        self.asked[name] += 1
        self.taken[name] += is_taken
        return found

    def copy_rows(self, *arguments: Any) -> Any:
        found = self._native.copy_rows(*arguments)
        return self._count("copy_rows", found, is_taken=found == -1)

    def take_reports(self, *arguments: Any) -> Any:
        found = self._native.take_reports(*arguments)
        return self._count("take_reports", found, is_taken=found is not None and found[0] == -1)

    def write_reports(self, *arguments: Any) -> Any:
        found = self._native.write_reports(*arguments)
        return self._count("write_reports", found, is_taken=found is not None)

    def take_ready(self, *arguments: Any) -> Any:
        found = self._native.take_ready(*arguments)
        return self._count("take_ready", found, is_taken=found is not None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class TimedLoop(InlineLoop):
    """Its time is that of the case's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return self._clock.ms / 1000


class Quiet:
    """`Flusher`, whose steps are operations."""

    def __init__(self, world: CopyWorld) -> None:
        self._world = world

    def request(self, _: object) -> None:
        self._world.told.append(("flush requested",))

    async def round_over(self) -> None:
        while self._world.ticket is not None:  # noqa: ASYNC110 - an operation ends it
            await asyncio.sleep(0)


class CopyWorld(World):
    """The follower's log, and its part in the partition."""

    repacks = False

    def _led(self, settings: PartitionSettings, replicas: int) -> Partition:
        copy = FollowerPartition(
            node=FOLLOWER,
            leader=NODE,
            leader_epoch=LeaderEpoch(0),
            is_in_sync=True,
            high_watermark=Offset(0),
            open_again=lambda key: self.told.append(("to be opened again",)),
            topic="t",
            topic_partition=self.key,
            partition_log=self.log,
            producers=ProducerStates(),
            settings=settings,
            flusher=cast("Flusher", Quiet(self)),
            clock=self.clock,
            room=self.room,
            is_internal=False,
            events=Events(self.told),
            has_store=False,
        )
        copy.begin()
        return cast("Partition", copy)

    @property
    def copy(self) -> FollowerPartition:
        return cast("FollowerPartition", self.partition)


class Link:
    """`CopyLink`, whose frames are delivered by hand."""

    def __init__(self) -> None:
        self.awaited = 0
        self.sent: deque[bytes] = deque()

    def send(self, frame: bytes, *, answered: bool) -> None:
        self.awaited += answered
        self.sent.append(bytes(frame))

    def close(self) -> None:
        """Nothing is open."""


class Topic(NamedTuple):
    """How a case is set up."""

    configs: Sequence[tuple[Any, Any]]
    """Settings and config, of the leader and of the follower of each partition, one after the other."""
    replicas: int
    has_journal: bool


class Side:
    """The partitions, each with its leader and its follower, on one road."""

    def __init__(self, loop: TimedLoop, road: Road, clock: Clock, topic: Topic) -> None:
        self._loop, self._road = loop, road
        with on_road(road):
            worlds = [
                (World, CopyWorld)[at % 2](
                    at,
                    clock,
                    loop,
                    native=None,
                    config=config,
                    settings=settings,
                    replicas=topic.replicas,
                    has_journal=topic.has_journal,
                    index=at // 2,
                )
                for at, (settings, config) in enumerate(topic.configs)
            ]
            self.leaders, self.copies = worlds[::2], cast("list[CopyWorld]", worlds[1::2])
            for leader, follower in zip(self.leaders, self.copies, strict=True):
                leader.partition.hot = hot.hot_road(leader.partition)
                follower.copy.hot = hot.hot_copy(follower.copy, SOUND)
            self.hot = self._hot()
            broker = SimpleNamespace(epoch=EPOCH, fenced=False)
            self.image: Any = SimpleNamespace(brokers={FOLLOWER: broker})
            self.followers = Followers(
                cluster_id=CLUSTER,
                node=NODE,
                partitions=cast("Any", SimpleNamespace(find=self._find)),
                image=lambda: self.image,
                clock=clock,
                throttle=BrokerThrottle(clock, 1e15),
                on_bug=self._on_bug,
            )
            me = Me(
                CLUSTER, FOLLOWER, lambda: EPOCH, lambda _: None, BrokerThrottle(clock, 1e15), lambda _: None,
                self._on_bug,
            )  # fmt: skip
            self.source = self._in_loop(lambda: Source(me, NODE))
            vars(self.source)["_open_soon"] = lambda: None  # `connect` does
            self.waiting: deque[Waiting] = deque()
            self.answers: deque[bytes] = deque()
            self.told: list[Told] = []
            self.connect()
            for follower in self.copies:
                self._in_loop(partial(self.source.add, follower.copy))

    def _hot(self) -> list[object]:
        return [each.partition.hot for each in self.worlds]

    def _on_bug(self, error: BaseException) -> None:
        raise AssertionError from error

    def _find(self, key: TopicPartition, _: object) -> object:
        """As `Partitions.find`: a frame that was changed may name another partition, of which there is none."""
        known = [each.partition for each in self.leaders if each.key == key]
        return known[0] if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _in_loop(self, work: Callable[[], Any]) -> Any:
        """Do this on the loop, and let it turn."""

        async def done() -> Any:
            found = work()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            return found

        return self._loop.run_until_complete(done())

    def carry_out(self, operation: Operation) -> tuple[type | None, object]:
        """Returns the answer, or what was raised."""
        on: Any = operation.keywords.get("on")
        where: Any = self if on is None else self.worlds[on]
        plain = Operation(operation.func, **{name: each for name, each in operation.keywords.items() if name != "on"})
        with on_road(self._road):
            answer = answer_of(plain, where)
            self._in_loop(self._collect)
            self._collect()
        return answer

    def _collect(self) -> None:
        while self.waiting and self.waiting[0].done():
            done = self.waiting.popleft()
            answer = done.answer()
            if answer is not None:
                self.answers.append(b"".join(answer))

    # operations

    def connect(self) -> None:
        """Another connection, where there is none."""
        if self.source._link is not None:
            return
        self.link = Link()
        self.connection: Any = SimpleNamespace(session={}, abort=lambda: self.told.append(("aborted",)))

        def linked() -> None:
            source = self.source
            source._link = cast("Any", self.link)
            source._to_forget.clear()
            for key in source._copies:
                if key in source._generations:
                    source._place(key)
            source._send_soon()

        self._in_loop(linked)

    def lose(self) -> None:
        """The connection breaks."""
        if self.source._link is None:
            return
        self.answers.clear()

        def lost() -> None:
            for each in list(self.waiting):
                each.cancel()
            self.waiting.clear()
            if (session := self.session) is not None:
                session.end()
            self.source._on_lost("lost")
            self.source._timers.pop(None).cancel()

        self._in_loop(lost)

    def ask(self, *, instead: Twisted | None = None) -> None:
        """The leader gets the follower's next frame, or another instead."""
        if not self.link.sent or self.source._link is None:
            return
        sent = self.link.sent.popleft()
        frame = sent if instead is None else instead.data

        def served() -> None:
            waiting = self.followers.serve(memoryview(frame)[4:], self.connection)
            if waiting is not None:
                self.waiting.append(waiting)

        try:
            self._in_loop(served)
        except CorruptData as error:
            self.told.append(("malformed", str(error)))
            self.lose()

    def answer(self, *, instead: Twisted | None = None) -> None:
        """The follower gets the leader's next frame, or another instead."""
        if not self.answers or self.source._link is None:
            return
        sent = self.answers.popleft()
        frame = sent if instead is None else instead.data
        self.link.awaited -= 1
        try:
            self._in_loop(lambda: self.source._on_frame(memoryview(frame)[4:]))
        except CorruptData as error:
            self.told.append(("malformed", str(error)))
            self.lose()

    def follow(self, *, index: int, epoch: int) -> None:
        """The follower hears of an epoch."""
        copy = self.copies[index].copy

        def followed() -> None:
            self.source.drop(copy.topic_partition)
            copy.follow(NODE, LeaderEpoch(epoch))
            self.source.add(copy)

        self._in_loop(followed)

    def fence(self, *, is_fenced: bool) -> None:
        """The controller has not heard the follower for a while, or hears it again."""
        self.image.brokers[FOLLOWER].fenced = is_fenced

    def close(self) -> object:
        self.lose()
        for each in self.copies:
            self._in_loop(partial(self.source.drop, each.key))
        for timer in self.source._timers.values():
            timer.cancel()
        return [do.close(each) for each in self.worlds]

    # observing

    @property
    def worlds(self) -> list[World]:
        """Of each partition the leader, and then its follower."""
        return [each for pair in zip(self.leaders, self.copies, strict=True) for each in pair]

    @property
    def session(self) -> FollowerSession | None:
        return self.followers._sessions.get(FOLLOWER)

    def seen(self, *, looks_at_leader: bool, all_of_it: bool = False) -> list[tuple[str, Seen]]:
        found: list[tuple[str, Seen]] = [("", self._seen_of_stream())]
        for at, each in enumerate(self.copies):
            seen = _seen_of_copy(each)
            if all_of_it:
                seen["disk"] = dict(observed.files(each.disk.root, ""))
            found.append((f"follower {at}: ", seen))
        if looks_at_leader:
            found += [
                (f"leader {at}: ", observed.seen_of(each, all_of_it=all_of_it)) for at, each in enumerate(self.leaders)
            ]
        return found

    def _seen_of_stream(self) -> Seen:
        source, session, seen = self.source, self.session, Seen()
        seen["told"] = list(self.told), [list(each.told) for each in self.leaders]
        seen["frames"] = list(self.link.sent), list(self.answers), self.link.awaited, len(self.waiting)
        seen["source"] = (
            source._generations, list(source._to_place), list(source._to_forget), list(source._flushed),
            source._refused, {key: list(each) for key, each in source._unflushed.items() if each},
            source._unflushed_bytes, source._answer_bytes, source._due, list(source._timers), sorted(source._placed_as),
        )  # fmt: skip
        seen["high watermarks"] = [each.partition.high_watermark for each in self.leaders]
        if session is not None:
            gathering = session._gathering
            seen["session"] = (
                [(place.generation, place.next_offset) for place in session._places.values()], session._placed_as,
                list(session._ready), list(session._news), list(session._told), session._is_behind, session.heard_at,
                session._answer_at, session._timer_at, session._timer is None, session._waiting is None,
                gathering._pending, gathering._shared, gathering._sharing, gathering._skip, gathering._vain,
            )  # fmt: skip
        return seen

    def forget_told(self) -> None:
        for told in (self.told, *(each.told for each in self.worlds)):
            told.clear()

    @property
    def has_failed(self) -> bool:
        """Whether the native road has failed, and been left."""
        return self.hot != self._hot()


def _seen_of_copy(world: CopyWorld) -> Seen:
    copy = world.copy
    seen: Seen = {"told": list(world.told)}
    sight, fetches = copy._sight, copy.fetches
    seen["copy"] = (
        copy._ended, copy._high_watermark, copy._epoch, copy.said_in, copy.leader_report, copy.in_doubt,
        copy.stuck_at, copy.is_changing, copy._sound_from, copy.open_since_ms, copy.damaged,
    )  # fmt: skip
    seen["sight"] = sight.reported, sight.is_level, sight._shown, sight._shown_bytes
    seen["fetches"] = fetches._stable_told, fetches._withheld_bytes, len(fetches._waiting)
    seen["bytes"] = copy._appended_bytes, copy._snapshot_at_bytes, copy._share.left
    producers = copy.producers
    seen["producers"] = producers.snapshot(), list(producers._states)
    seen["transactions"] = list(producers.transactions._first.items()), list(producers.transactions._ended)
    observed._log(seen, world)
    observed._contents(seen, world, all_of_it=False)
    observed._engine(seen, world)
    return seen


@contextmanager
def on_road(road: Road) -> Iterator[None]:
    """Have the copy stream take this road meanwhile."""
    modules: Sequence[Any] = (followers, copying, hot)
    for each in modules:
        vars(each)["ROAD"] = road
    try:
        yield
    finally:
        for each in modules:
            vars(each)["ROAD"] = ROAD


class Pair:
    """One case on both roads."""

    def __init__(self, chance: Random, bodies: Bodies, native: Native) -> None:
        self._chance = chance
        clock, fsync = Clock(), chance.random() < 0.5
        self.counted = CountedCopies(native)
        replicas, has_journal = chance.choice((2, 2, 3)), chance.random() < 0.85
        narrow, partitions = chance.random() < 0.3, chance.choice((1, 1, 2, 3))
        configs = [
            settings_of(chance, fsync=chance.choice((fsync, fsync, not fsync)), is_narrow=narrow, replicas=replicas)
            for _ in range(2 * partitions)
        ]
        topic = Topic(configs, replicas, has_journal)
        self.told = f"fsync={fsync} {topic}"
        self.loops = TimedLoop(clock), TimedLoop(clock)
        roads = Road(cast("Native", self.counted), "native"), Road(None, PURE)
        self.natively, self.python = (
            Side(loop, road, clock, topic) for loop, road in zip(self.loops, roads, strict=True)
        )
        transactions = chance.choice((0.0, 0.0, 1.0))
        self._choosers = [
            Chooser(chance, bodies, world, fsync=fsync, transactions=0.0 if at % 2 else transactions)
            for at, world in enumerate(self.python.worlds)
        ]
        self._faults = chance.choice((0.0, 0.0, 1.0))
        self._breaks = chance.choice((0.0, 0.0, 0.02))
        self._twists = chance.choice((0.0, 0.0, 0.1))
        self._bytes_max = chance.choice((0, 0, 300, 5_000))
        """Of some answers; 0: of none."""

    def next(self) -> Operation:
        chance, side = self._chance, self.python
        at = chance.random()
        if side.source._link is None and at < 0.5:
            return to(Side.connect)
        if at < 0.6 and (side.answers or side.link.sent):
            is_answer = side.answers and (not side.link.sent or chance.random() < 0.5)
            return to(Side.answer, instead=self._answered()) if is_answer else to(Side.ask, instead=self._asked())
        index, copies = chance.randrange(len(side.copies)), 0.75 if not side.source._unflushed_bytes else 0.85
        if at < copies:
            return self._of_copy(index)
        if at < copies + self._breaks:
            return self._rare(index)
        return self._of_leader(index)

    def _asked(self) -> Twisted | None:
        """The frame in the place of the follower's next one, if any."""
        chance, frame, (_, who) = self._chance, self.python.link.sent[0], self.python.source._who
        if chance.random() < self._breaks:
            return flipped(frame, chance)
        if chance.random() < self._twists:
            return reported_otherwise(frame, who, chance)
        if self._bytes_max and chance.random() < 0.3:
            return asked_less(frame, who, self._bytes_max)
        return None

    def _answered(self) -> Twisted | None:
        """The frame in the place of the leader's next one, if any."""
        chance, frame = self._chance, self.python.answers[0]
        if chance.random() < self._breaks:
            return flipped(frame, chance)
        return answered_otherwise(frame, chance) if chance.random() < self._twists else None

    def _of_leader(self, index: int) -> Operation:
        world, chosen = self.python.leaders[index], self._choosers[2 * index].next()
        if world.partition._commits._waiting and self._chance.random() < 0.01:
            settings = replace(world.partition.settings, min_insync_replicas=len(REPLICAS))
            chosen = to(do.configure, settings=settings, config=world.log.config)
        return Operation(chosen.func, **chosen.keywords, on=2 * index)

    def _of_copy(self, index: int) -> Operation:
        chance, world = self._chance, self._choosers[2 * index + 1]
        kinds: list[Callable[[], Operation]] = [world.flush, world.flush, world.step_of_flush, world.step_of_flush]
        kinds += [world.park_fetch, world.collect_for_others, world.snapshot_soon, world.much_unread, world.pass_time]
        kinds += [lambda: to(do.close_file), lambda: to(do.stable), world.read_on]
        if chance.random() < self._faults:
            kinds += [world.fill_disk, world.break_disk, world.fail_syncs, world.heal, world.heal]
            kinds += [lambda: to(do.lack_room), lambda: to(do.share, left=chance.choice((-1, 1_000)))]
        chosen = chance.choice(kinds)()
        if self.python.copies[index].partition.lacks_room and chance.random() < 0.3:
            chosen = world.heal()
        return Operation(chosen.func, **chosen.keywords, on=2 * index + 1)

    def _rare(self, index: int) -> Operation:
        chance = self._chance
        epoch = self.python.leaders[index].partition.isr.leader.epoch
        return chance.choice(
            (
                to(Side.lose),
                to(Side.follow, index=index, epoch=epoch),
                to(Side.follow, index=index, epoch=epoch),
                to(Side.fence, is_fenced=chance.random() < 0.5),
            )
        )

    def close(self) -> None:
        for loop in self.loops:
            loop.close()
