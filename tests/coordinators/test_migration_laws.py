"""Laws of groups with members of both protocols, which come, go, speak and fall silent in any order.

No partition is read by two members, all are read in the end, and the group is of the kind that its members make it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import immutables
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.coordinators.groups.configs import MigrationPolicy
from headrace.coordinators.groups.model import Group, GroupState
from headrace.wire.errors import ErrorCode
from tests.coordinators.consumer_world import REBALANCE_MS, SESSION_MS, Client
from tests.coordinators.migration_world import ClassicClient, MigrationWorld
from tests.tiers import examples

TOPICS = ("t", "u")
CLIENTS_MAX = 3
"""Of each kind."""


class History:
    """Acts on the world as a script says, which is numbers alone."""

    def __init__(self, world: MigrationWorld, *, refuses: bool = True) -> None:
        self.world = world
        self.refuses = refuses

    def run(self, script: list[tuple[int, int, int]]) -> None:
        for action, whom, how in script:
            ACTIONS[action](self, whom, how)

    def client(self, whom: int) -> Client | None:
        clients = list(self.world.clients.values())
        return clients[whom % len(clients)] if clients else None

    def classic(self, whom: int) -> ClassicClient | None:
        clients = list(self.world.classics.values())
        return clients[whom % len(clients)] if clients else None

    def come(self, _: int, how: int) -> None:
        topics = TOPICS if how % 4 else TOPICS[:1]
        instance_id = f"i{self.world.made}" if how > 8 else None
        if how % 2 and len(self.world.classics) < CLIENTS_MAX:
            self.world.act(self.world.classic(*topics, instance_id=instance_id))
        elif len(self.world.clients) < CLIENTS_MAX:
            self.world.say(self.world.client(*topics, instance_id=instance_id))

    def come_back(self, _: int, how: int) -> None:
        """A static member's process ends, and another begins under its name, of the same protocol or the other."""
        old = next((one for one in self.world.everybody if one.instance_id is not None), None)
        if old is None:
            return
        if isinstance(old, ClassicClient):
            self.world.die_silently(old)
        elif how % 3:
            self.world.leave(old, -2)
        else:
            self.world.die(old)
        if how % 2:
            self.world.act(self.world.classic(*old.topics, instance_id=old.instance_id))
        else:
            self.world.say(self.world.client(*old.topics, instance_id=old.instance_id))

    def talk(self, whom: int, how: int) -> None:
        if client := self.client(whom):
            self.world.beat(client)
            if how % 3:
                client.take_up()
                self.world.check()

    def act(self, whom: int, how: int) -> None:
        if client := self.classic(whom):
            for _ in range(1 + how % 3):
                self.world.act(client)

    def repeat_join(self, whom: int, _: int) -> None:
        if client := self.classic(whom):
            self.world.repeat_join(client)

    def lose_answer(self, whom: int, _: int) -> None:
        if client := self.classic(whom):
            self.world.lose_answer(client)

    def go(self, whom: int, how: int) -> None:
        client, classic = self.client(whom), self.classic(whom)
        if how % 4 == 0 and client:
            self.world.leave(client)
        elif how % 4 == 1 and client:
            self.world.die(client)
        elif how % 4 == 2 and classic:
            self.world.go(classic)
        elif classic:
            self.world.die_silently(classic)

    def all_of_the_new_protocol_go(self, whom: int, how: int) -> None:
        for _ in list(self.world.clients):
            self.go(0, how % 2)
        self.act(whom, how)

    def one_comes_and_all_of_the_new_protocol_go(self, _: int, how: int) -> None:
        """A rolling downgrade in haste: the others have not heard of who came yet."""
        if len(self.world.classics) >= CLIENTS_MAX:
            return
        client = self.world.classic(*TOPICS[: 1 + how % 2])
        for act in range(12):
            if act == 4 + how % 3:
                self.all_of_the_new_protocol_go(0, how)
            self.world.act(client)

    def all_talk(self, _: int, how: int) -> None:
        for each in range(CLIENTS_MAX):
            self.talk(each, how)
            self.act(each, 1)

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

    def refuse(self, _: int, __: int) -> None:
        if self.refuses:
            self.world.refuse_next = ErrorCode.NOT_ENOUGH_REPLICAS


ACTIONS: list[Callable[[History, int, int], None]] = [
    *[History.come] * 2,
    *[History.talk] * 5,
    *[History.act] * 8,
    *[History.all_talk] * 3,
    History.all_of_the_new_protocol_go,
    History.one_comes_and_all_of_the_new_protocol_go,
    *(History.go, History.wait, History.write, History.lose_answer, History.repeat_join, History.come_back),
    *(History.change_topics, History.refuse, History.lose_broker),
]
NUMBERS = st.tuples(st.integers(0, len(ACTIONS) - 1), st.integers(0, CLIENTS_MAX - 1), st.integers(0, 11))
SCRIPTS = st.integers(20, 120).flatmap(lambda size: st.lists(NUMBERS, min_size=size, max_size=size))


LEFT_BEHIND_AND_BACK: Final = [
    *[(0, 0, 0)] * 7,
    *[(0, 0, 1), (0, 0, 9), (28, 0, 0), (0, 0, 9), (15, 0, 0), (15, 0, 0), (15, 0, 0), (25, 0, 1), (7, 2, 1)],
    *[(18, 0, 0), (7, 0, 1), (7, 1, 1), (21, 0, 2)],
]
"""A static member misses a generation of cooperative members, and then joins with what it had."""


@example(LEFT_BEHIND_AND_BACK, True, False, MigrationPolicy.BIDIRECTIONAL)
@settings(max_examples=examples(100), deadline=None)
@given(SCRIPTS, st.booleans(), st.booleans(), st.sampled_from([MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE]))
def test_nobody_reads_what_another_reads_and_in_the_end_all_is_read(
    script: list[tuple[int, int, int]], autowrite: bool, eager: bool, policy: MigrationPolicy
) -> None:
    world = MigrationWorld(eager=eager, autowrite=autowrite, policy=policy)
    History(world).run(script)
    world.quieten()
    everybody = world.everybody
    wanted = {name for client in everybody for name in client.topics}
    read = [partition for share in world.all_shares().values() for partition in share]
    assert sorted(read) == sorted(world.cluster.partitions(wanted))
    for client in everybody:
        assert client.reading <= world.cluster.partitions(client.topics)
    if everybody:
        assert world.groups["g"].state is GroupState.STABLE
        new = world.groups["g"].consumer is not None
        assert new == bool(world.clients) or (new and not policy.downgrades)


def timeless(group: Group) -> tuple[object, ...]:
    """As the log can tell it."""
    if group.consumer is None:
        formed = group.state in (GroupState.STABLE, GroupState.EMPTY)
        members = {one.id: (one.instance_id, one.assignment) for one in group.members.values()}
        return (group.generation, members) if formed else ()
    none: immutables.Map[str, int] = immutables.Map()
    quiet = replace(group.consumer, sessions=none, revocations=none, joins=none, syncs=none)
    return (replace(quiet, topics_version=-1, converts_from_ms=0),)


@settings(max_examples=examples(50), deadline=None)
@given(SCRIPTS, st.booleans())
def test_the_log_replays_to_the_group(script: list[tuple[int, int, int]], eager: bool) -> None:
    world = MigrationWorld(eager=eager, autowrite=False)
    History(world, refuses=False).run(script)  # that a classic group is empty is not tried again where it was refused
    while world.in_flight:
        world.settle()
    replayed = world.replayed()
    for name, group in world.groups.items():
        if group.consumer is not None or group.recorded:
            assert (replayed[name].consumer is None) == (group.consumer is None)
            assert replayed[name].recorded == group.recorded
            assert timeless(group) in ((), timeless(replayed[name]))
