"""Laws of consumer groups (KIP-848), whatever the order in which members come, go, speak, fall silent and are heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import immutables
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinators.groups.consumer.model import ConsumerGroup
from headrace.coordinators.groups.model import Group, GroupState
from headrace.wire.errors import ErrorCode
from tests.coordinators.consumer_world import REBALANCE_MS, SESSION_MS, Client, ConsumerWorld
from tests.tiers import examples

TOPICS = ("t", "u", "v")
CLIENTS_MAX = 4


class History:
    """Acts on the world as a script says, which is numbers alone."""

    def __init__(self, world: ConsumerWorld, *, mixed: bool = False) -> None:
        self.world = world
        self.mixed = mixed

    def run(self, script: list[tuple[int, int, int]]) -> None:
        for action, whom, how in script:
            ACTIONS[action](self, whom, how)

    def client(self, whom: int) -> Client | None:
        clients = list(self.world.clients.values())
        return clients[whom % len(clients)] if clients else None

    def come(self, _: int, how: int) -> None:
        if len(self.world.clients) < CLIENTS_MAX:
            topics = tuple(name for at, name in enumerate(TOPICS) if how >> at & 1) if self.mixed else TOPICS
            self.world.say(self.world.client(*topics))

    def speak(self, whom: int, how: int) -> None:
        if client := self.client(whom):
            self.world.say(client)
            if how % 3:
                self.world.arrive(client, twice=how % 3 == 2)

    def talk(self, whom: int, how: int) -> None:
        """A whole exchange, after which it takes up what it was told, or not yet."""
        if client := self.client(whom):
            self.world.beat(client)
            if how % 3:
                client.take_up()
                self.world.check()

    def arrive(self, whom: int, how: int) -> None:
        if client := self.client(whom):
            self.world.arrive(client, twice=how % 2 == 1)

    def arrive_together(self, _: int, how: int) -> None:
        for client in list(self.world.clients.values())[how % 3 :]:
            self.world.say(client)
        self.world.arrive_together()

    def hear(self, whom: int, how: int) -> None:
        if client := self.client(whom):
            self.world.hear(client)
            if how % 2:
                client.take_up()
                self.world.check()

    def take_up(self, whom: int, _: int) -> None:
        if client := self.client(whom):
            client.take_up()
            self.world.check()

    def miss(self, whom: int, _: int) -> None:
        if client := self.client(whom):
            self.world.miss(client)

    def go(self, whom: int, how: int) -> None:
        if client := self.client(whom):
            if how % 2:
                self.world.leave(client)
            else:
                self.world.die(client)

    def wait(self, _: int, how: int) -> None:
        self.world.advance((1, 100, REBALANCE_MS, SESSION_MS)[how % 4])
        self.world.check()

    def write(self, _: int, how: int) -> None:
        for _ in range(min(1 + how % 3, len(self.world.in_flight))):
            self.world.settle()

    def lose_broker(self, _: int, __: int) -> None:
        self.world.lose_broker()
        self.world.check()

    def change_topics(self, whom: int, how: int) -> None:
        self.world.cluster = self.world.cluster.having(**{TOPICS[whom % len(TOPICS)]: how % 5})

    def refuse(self, _: int, how: int) -> None:
        """A log that takes nothing for now; or not as much at once."""
        too_large = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self.world.refuse_next = too_large if how % 2 else ErrorCode.NOT_ENOUGH_REPLICAS

    def commit(self, whom: int, how: int) -> None:
        """A commit is accepted exactly if a member sends it at its epoch, or for partitions that are its own since the
        named epoch. So it is accepted for all that the member reads, whether it knows its latest epoch or not."""
        client, topics = self.client(whom), self.world.cluster
        chosen = sorted(client.reading if client and how % 2 else topics.partitions(TOPICS))
        if client is None or not chosen:
            return
        partition = chosen[how % len(chosen)]
        epoch = client.epoch - how % 3
        name = topics.name(partition.topic_id)
        member = self.world.group.members.get(client.id)
        if name is None or (epoch < 0 and not self.world.group.members):
            return
        had = self.world.watch.has_had(client.id, partition, epoch)
        self.world.refuse_next = ErrorCode.NONE
        waiter = self.world.commit(
            {partition.partition: 1},
            topic=name,
            topic_id=partition.topic_id,
            member_id=client.id,
            generation=epoch,
        )
        refused = waiter in self.world.replies and any(self.world.committed(waiter))
        if member is None or epoch >= member.epoch:
            assert refused == (member is None or epoch > member.epoch)
        else:
            assert had is None or refused != (had and epoch >= 0)
            assert not refused or epoch < client.since.get(partition, epoch + 1), "of what it reads"


ACTIONS: list[Callable[[History, int, int], None]] = [
    *(History.come, History.speak, History.speak, History.arrive, History.hear, History.hear),
    *[History.arrive_together] * 3,
    *[History.talk] * 10,
    *(History.take_up, History.miss, History.go, History.wait, History.write, History.write),
    *(History.change_topics, History.refuse, History.commit, History.lose_broker),
]
NUMBERS = st.tuples(st.integers(0, len(ACTIONS) - 1), st.integers(0, CLIENTS_MAX - 1), st.integers(0, 11))
SCRIPTS = st.integers(20, 120).flatmap(lambda size: st.lists(NUMBERS, min_size=size, max_size=size))


def timeless(group: Group) -> Group:
    """As the log can tell it."""
    assert group.consumer is not None
    none: immutables.Map[str, int] = immutables.Map()
    consumer: ConsumerGroup = replace(group.consumer, sessions=none, revocations=none, topics_version=-1)
    return replace(group, consumer=consumer, next_write=0, since_ms=-1)


@settings(max_examples=examples(250), deadline=None)
@given(SCRIPTS, st.booleans(), st.booleans(), st.sampled_from(["uniform", "range"]))
def test_nobody_reads_what_another_reads_and_in_the_end_all_is_read(
    script: list[tuple[int, int, int]], autowrite: bool, mixed: bool, assignor: str
) -> None:
    world = ConsumerWorld(assignor, autowrite=autowrite)
    History(world, mixed=mixed).run(script)
    world.quieten()
    wanted = {name for client in world.clients.values() for name in client.topics}
    read = [partition for share in world.shares().values() for partition in share]
    assert sorted(read) == sorted(world.cluster.partitions(wanted))
    for client in world.clients.values():
        assert client.reading <= world.cluster.partitions(client.topics)
    if world.clients:
        assert world.groups["g"].state is GroupState.STABLE
    loads = [len(share) for share in world.shares().values()]
    if assignor == "uniform" and not mixed and loads:
        assert max(loads) - min(loads) <= 1


@settings(max_examples=examples(250), deadline=None)
@given(SCRIPTS)
def test_the_log_replays_to_the_group(script: list[tuple[int, int, int]]) -> None:
    world = ConsumerWorld(autowrite=False)
    History(world).run(script)
    while world.in_flight:
        world.settle()
    replayed = world.replayed()
    assert {name: timeless(group) for name, group in replayed.items() if group.consumer} == {
        name: timeless(group) for name, group in world.groups.items() if group.consumer
    }


@settings(max_examples=examples(50), deadline=None)
@given(SCRIPTS)
def test_the_same_history_has_the_same_effects(script: list[tuple[int, int, int]]) -> None:
    seen = []
    for _ in range(2):
        world = ConsumerWorld(autowrite=False)
        History(world).run(script)
        seen.append((world.effects_seen, world.log, world.groups))
    assert seen[0] == seen[1]


@settings(max_examples=examples(80), deadline=None)
@given(SCRIPTS)
def test_what_need_not_move_stays(script: list[tuple[int, int, int]]) -> None:
    """Once all is quiet nobody who stays loses anything by another's leaving."""
    world = ConsumerWorld("uniform")
    History(world).run(script)
    world.quieten()
    before = world.shares()
    for client in list(world.clients.values())[:1]:
        world.leave(client)
    world.quieten()
    assert all(before[name] <= share for name, share in world.shares().items())
