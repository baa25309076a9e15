"""Laws of consumer groups, over random histories of clients, crashes, refused writes and passing time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.machine import step
from headrace.coordinators.groups.membership import KEEPS_SESSION, answered
from headrace.coordinators.groups.model import Group, GroupState, Member, Protocol
from headrace.wire.errors import ErrorCode
from tests.coordinators.group_world import World
from tests.tiers import examples

PARTITIONS = 6
CLIENTS = 4
STATIC = 2
"""Of the clients, the last so many are static members (KIP-345)."""
STARTS_AFRESH = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
FENCED = (*STARTS_AFRESH, ErrorCode.ILLEGAL_GENERATION)


@dataclass
class Client:
    """A consumer that keeps to the protocol. It commits ever higher offsets."""

    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    members: tuple[str, ...] = ()
    join: int | None = None
    sync: int | None = None
    owns: tuple[int, ...] = ()

    def begin(self, member_id: str = "") -> None:
        """As after a restart, with all forgotten but its instance id, and this."""
        vars(self).update(vars(Client(instance_id=self.instance_id, member_id=member_id)))


def some_clients() -> list[Client]:
    names = [None] * (CLIENTS - STATIC) + [f"instance {at}" for at in range(STATIC)]
    return [Client(instance_id=name) for name in names]


@dataclass
class History:
    """Clients on a world, and what the laws need to remember."""

    world: World
    clients: list[Client] = field(default_factory=some_clients)
    dead: list[tuple[str, str]] = field(default_factory=list)
    """Instance and member ids of static members that died."""
    succeeded: set[tuple[str, str]] = field(default_factory=set)
    """Members whose successor has its assignment: then its membership is durable."""
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    newest_assigned: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    commits: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    next_offset: int = 0

    def run(self, script: list[tuple[int, int, int]]) -> None:
        for action, who, amount in script:
            ACTIONS[action](self, self.clients[who], amount)
            self.check()

    # client actions

    def act(self, client: Client, _: int) -> None:
        """The client's next move by the protocol."""
        if client.join is not None:
            self.take_join(client)
        elif client.sync is not None:
            self.take_sync(client)
        elif client.generation < 0:
            client.join = self.world.join("g", client.member_id, known_id=True, instance_id=client.instance_id)
            self.take_join(client)
        else:
            beat = self.world.heartbeat(client.member_id, client.generation, instance_id=client.instance_id)
            self.take(client, beat)

    def round(self, _: Client, __: int) -> None:
        """Everybody's next move."""
        for client in self.clients:
            self.act(client, 0)

    def take_join(self, client: Client) -> None:
        reply = self.world.replies.get(client.join) if client.join is not None else None
        if reply is None:
            return
        client.join = None
        if not isinstance(reply, ev.JoinReply):
            client.generation = -1
        elif reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif reply.error is ErrorCode.NONE:
            self.on_joined(client, reply)
        else:
            self.take(client, reply.error)

    def on_joined(self, client: Client, reply: ev.JoinReply) -> None:
        client.member_id, client.generation = reply.member_id, reply.generation
        assignments: dict[str, bytes] = {}
        if reply.leader == client.member_id and not reply.skip_assignment:
            members = [member.id for member in reply.members]
            shares = {name: list(range(at, PARTITIONS, len(members))) for at, name in enumerate(members)}
            assignments = {name: json.dumps(share).encode() for name, share in shares.items()}
        client.sync = self.world.sync(client.member_id, client.generation, assignments, instance_id=client.instance_id)

    def take_sync(self, client: Client) -> None:
        reply = self.world.replies.get(client.sync) if client.sync is not None else None
        if reply is None:
            return
        client.sync = None
        if not isinstance(reply, ev.SyncReply):
            client.generation = -1
        elif reply.error is ErrorCode.NONE:
            client.owns = tuple(json.loads(reply.assignment or b"[]"))
            self.succeeded.update(one for one in self.dead if one[0] == client.instance_id)
            for partition in client.owns:
                name = client.instance_id or client.member_id
                owner = self.owners.setdefault((client.generation, partition), name)
                assert owner == name, "two owners of one partition in one generation"
            self.newest_assigned = max(self.newest_assigned, client.generation)
        else:
            self.take(client, reply.error)

    def take(self, client: Client, error: ErrorCode) -> None:
        if error in FENCED:
            client.begin("" if error in STARTS_AFRESH else client.member_id)
        elif error is not ErrorCode.NONE:
            client.generation = -1

    def commit(self, client: Client, partition: int) -> None:
        """Commit for a partition, by right or not: the coordinator fences by generation, not by owner."""
        self.next_offset += 1
        group = self.world.groups.get("g")
        stale = group is not None and group.members and client.generation != group.generation
        waiter = self.world.commit(
            {partition: self.next_offset},
            member_id=client.member_id,
            generation=client.generation,
            instance_id=client.instance_id if client.member_id else None,
        )
        reply = self.world.replies.get(waiter)
        refused = isinstance(reply, ev.CommitReply) and reply.errors[0] is not ErrorCode.NONE
        assert refused or not stale, "a member of another generation committed"
        self.commits[waiter] = (partition, self.next_offset, len(self.world.log) - 1)

    def leave(self, client: Client, _: int) -> None:
        if client.instance_id is not None:
            self.world.leave(ev.Leaver("", client.instance_id))  # as an administrator does it
        elif client.member_id:
            self.world.leave(client.member_id)
        client.begin()

    def forget(self, client: Client, _: int) -> None:
        """The client dies and comes back as another, or as a static member under its name, saying nothing."""
        if client.instance_id is not None and client.member_id:
            self.dead.append((client.instance_id, client.member_id))
        client.begin()

    def restart(self, client: Client, _: int) -> None:
        """A static member is soon back."""
        if client.instance_id is not None:
            self.forget(client, 0)
            self.act(client, 0)

    # faults

    def advance(self, _: Client, amount: int) -> None:
        self.world.advance(amount * 1_500)

    def settle(self, _: Client, amount: int) -> None:
        for __ in range(min(amount + 1, len(self.world.in_flight))):
            self.world.settle()

    def refuse(self, _: Client, __: int) -> None:
        """The next append will be refused: too few replicas are in sync."""
        self.world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE

    def crash(self, _: Client, __: int) -> None:
        self.world.crash()

    # the laws

    def check(self) -> None:
        for waiter, (partition, offset, _) in list(self.commits.items()):
            reply = self.world.replies.get(waiter)
            if reply is not None:
                del self.commits[waiter]
                if isinstance(reply, ev.CommitReply) and reply.errors == (ErrorCode.NONE,):
                    self.acknowledged[partition] = max(offset, self.acknowledged.get(partition, -1))
        for partition, offset in self.acknowledged.items():
            assert self.world.offset(partition) >= offset, "a commit fell back"
        group = self.world.groups.get("g")
        if group is not None and group.state is GroupState.STABLE:
            assert group.generation >= self.newest_assigned, "a generation fell back"
        for instance_id, member_id in self.succeeded:
            generation = 0 if group is None else group.generation
            beat = self.world.heartbeat(member_id, generation, instance_id=instance_id)
            assert beat is not ErrorCode.NONE, "a static member whose place another has was let in"


ACTIONS: list[Callable[[History, Client, int], None]] = [
    *[History.round] * 6,
    *[History.settle] * 5,
    *[History.commit] * 3,
    *[History.act] * 2,
    *[History.restart] * 2,
    *[History.advance] * 2,
    History.leave,
    History.forget,
    History.refuse,
    History.crash,
]


def scripts(actions: int) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    """`actions` takes in the first so many of ACTIONS."""
    one = st.tuples(st.integers(0, actions - 1), st.integers(0, CLIENTS - 1), st.integers(0, PARTITIONS - 1))
    return st.lists(one, min_size=40, max_size=120)


delays = st.sampled_from([0, 3_000])


def config(delay_ms: int) -> GroupConfig:
    return GroupConfig(group_initial_rebalance_delay_ms=delay_ms)


@settings(max_examples=examples(150), deadline=None)
@given(scripts(len(ACTIONS)), delays)
def test_one_owner_per_partition_and_generation_and_no_commit_falls_back(
    script: list[tuple[int, int, int]], delay_ms: int
) -> None:
    History(World(config=config(delay_ms), autowrite=False)).run(script)


@settings(max_examples=examples(60), deadline=None)
@given(scripts(len(ACTIONS)), delays)
def test_the_same_history_has_the_same_effects(script: list[tuple[int, int, int]], delay_ms: int) -> None:
    seen = []
    for _ in range(2):
        world = World(config=config(delay_ms), autowrite=False)
        History(world).run(script)
        seen.append((world.effects_seen, world.log, world.groups))
    assert seen[0] == seen[1]


def durable_part(group: Group) -> tuple[object, ...]:
    """The part of a group that a restart must restore."""
    return (group.offsets, group.recorded)


@settings(max_examples=examples(100), deadline=None)
@given(scripts(len(ACTIONS) - 1))
def test_the_log_replays_to_what_was_answered(script: list[tuple[int, int, int]]) -> None:
    world = World(autowrite=False)
    History(world).run(script)
    while world.in_flight:
        world.settle()
    replayed = world.replayed()
    held = {name: group for name, group in world.groups.items() if group.offsets or group.recorded}
    assert {name: durable_part(group) for name, group in replayed.items()} == {
        name: durable_part(group) for name, group in held.items()
    }
    for name, group in held.items():
        if group.state is GroupState.STABLE:
            assert without_times(replayed[name]) == without_times(group)


def without_times(group: Group) -> Group:
    """The group as its record can tell it: only the chosen protocol, no deadlines, no numbers of writes."""
    members = {
        member.id: member._replace(
            deadline_ms=None,
            synced=True,
            protocols=tuple(offer for offer in member.protocols if offer.name == group.protocol),
        )
        for member in group.members.values()
    }
    return replace(group, members=members, pending={}, sync_deadline_ms=None, next_write=0)


@settings(max_examples=examples(100), deadline=None)
@given(scripts(len(ACTIONS) - 2), delays)
def test_everybody_is_answered_and_a_group_left_alone_becomes_empty(
    script: list[tuple[int, int, int]], delay_ms: int
) -> None:
    world = World(config=config(delay_ms), autowrite=False)
    History(world).run(script)
    world.autowrite = True
    while world.in_flight:
        world.settle()
    for _ in range(3):
        world.advance(400_000)
    assert world.waiting == set()
    group = world.groups.get("g")
    assert group is None or (group.state is GroupState.EMPTY and not group.pending)


@settings(max_examples=examples(60), deadline=None)
@given(scripts(len(ACTIONS) - 4))
def test_clients_that_go_on_all_get_their_share(script: list[tuple[int, int, int]]) -> None:
    """Liveness: however it began, clients that keep to the protocol settle on one generation that shares out all."""
    world = World(config=CONFIG_LIVE, autowrite=False)
    history = History(world)
    history.run(script)
    world.autowrite = True
    while world.in_flight:
        world.settle()
    for _ in range(60):
        for client in history.clients:
            history.act(client, 0)
        world.advance(1_500)
    group = world.groups["g"]
    assert group.state is GroupState.STABLE
    assert {client.generation for client in history.clients} == {group.generation}
    assert sorted(partition for client in history.clients for partition in client.owns) == list(range(PARTITIONS))


CONFIG_LIVE = GroupConfig(group_initial_rebalance_delay_ms=3_000)


asked = st.lists(
    st.tuples(
        st.sampled_from(["join", "sync", "heartbeat", "other protocols", "leave", "restart"]),
        st.integers(0, CLIENTS - 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
"""Requests that arrive together: the kind, the member, and whether in the current generation."""


def as_event(group: Group, waiter: int, what: str, who: int, current: bool) -> ev.Event:
    member = list(group.members.values())[who % len(group.members)]
    generation = group.generation - (not current)
    shares = dict.fromkeys(group.members, b"[]") if member.id == group.leader else {}
    match what:
        case "heartbeat":
            return ev.Heartbeat(waiter, member.id, generation, member.instance_id)
        case "sync":
            return ev.Sync(waiter, member.id, generation, shares, member.instance_id)
        case "leave":
            return ev.Leave(waiter=waiter, members=(ev.Leaver(member.id),))
    protocols = (*member.protocols, Protocol("another", b"")) if what == "other protocols" else member.protocols
    session_ms, rebalance_ms = member.session_timeout_ms, member.rebalance_timeout_ms
    comes_anew = what == "restart" and member.instance_id is not None
    ids = ("", f"again {waiter}") if comes_anew else (member.id, "")
    names = (*ids, True, "client", "/127.0.0.1")
    return ev.Join(waiter, *names, session_ms, rebalance_ms, "consumer", protocols, member.instance_id)


def with_members(script: list[tuple[int, int, int]]) -> tuple[World, Group]:
    """A history's group, in which there is somebody."""
    world = World(autowrite=False)
    History(world).run(script)
    group = world.groups.get("g")
    if group is None or not group.members:
        event = ev.Join(
            -1, "", "m", False, "client", "/127.0.0.1", 10_000, 60_000, "consumer", (Protocol("range", b""),)
        )
        group, _ = step("g", None, event, world.moment(), world.config, world.cluster)
    assert group is not None
    return world, group


def one_by_one(
    world: World, group: Group, events: list[ev.Event], apart_ms: int
) -> tuple[Group | None, list[ev.Effect]]:
    """So many ms apart."""
    after: Group | None = group
    effects: list[ev.Effect] = []
    for event in events:
        after, more = step("g", after, event, world.moment(), world.config, world.cluster)
        effects += more
        world.now_ms += apart_ms
    world.now_ms -= apart_ms
    return after, effects


def told(effects: list[ev.Effect]) -> list[ev.Effect]:
    """All but when to wake the group, which is as early as the earliest that was asked for."""
    return [effect for effect in effects if not isinstance(effect, ev.Wake)]


def woken(effects: list[ev.Effect]) -> int | None:
    return min((effect.at_ms for effect in effects if isinstance(effect, ev.Wake)), default=None)


@settings(max_examples=examples(200), deadline=None)
@given(scripts(len(ACTIONS)), asked)
def test_what_came_together_is_as_if_it_came_one_by_one(
    script: list[tuple[int, int, int]], asked: list[tuple[str, int, bool]]
) -> None:
    world, group = with_members(script)
    events: list[ev.Event] = [as_event(group, waiter, *one) for waiter, one in enumerate(asked)]
    before = copy.deepcopy(group)
    expected, effects = one_by_one(world, group, events, 0)
    after, at_once = step("g", group, ev.Together(tuple(events)), world.moment(), world.config, world.cluster)
    assert after == expected
    assert after is None or list(after.members) == list((expected or after).members), "the order is kept"
    assert told(at_once) == told(effects)
    assert woken(at_once) == woken(effects)
    assert group == before, "what went in is untouched"


@settings(max_examples=examples(200), deadline=None)
@given(scripts(len(ACTIONS)), asked, asked, st.integers(0, 500))
def test_a_heartbeat_may_be_answered_before_the_group_hears_of_it(
    script: list[tuple[int, int, int]],
    beats: list[tuple[str, int, bool]],
    then: list[tuple[str, int, bool]],
    apart_ms: int,
) -> None:
    world, group = with_members(script)
    events = [as_event(group, waiter, "heartbeat", who, current) for waiter, (_, who, current) in enumerate(beats)]
    at_ms, errors = {}, []
    for number, event in enumerate(events):
        assert isinstance(event, ev.Heartbeat)
        errors.append(answered(group, event))
        if errors[-1] in KEEPS_SESSION:
            at_ms[event.member_id] = world.now_ms + number * apart_ms
    expected, effects = one_by_one(world, group, list(events), apart_ms)
    beaten = [effect.reply for effect in effects if isinstance(effect, ev.Reply)]
    assert beaten == [ev.HeartbeatReply(error) for error in errors]
    assert all(isinstance(effect, (ev.Reply, ev.Wake)) for effect in effects), "a heartbeat does nothing else"
    next_event = as_event(group, len(events), *then[0])
    expected, effects = step("g", expected, next_event, world.moment(), world.config, world.cluster)
    both = ev.Together((ev.Heard(at_ms), next_event))
    after, now = step("g", group, both, world.moment(), world.config, world.cluster)
    assert after == expected
    assert told(now) == told(effects)


def test_a_member_s_short_cuts_change_what_they_say() -> None:
    member = Member("m", "c", "h", 1, 2, (), "i", b"share", 3, 4, True, True, 5)
    assert member.heard(9) == member._replace(deadline_ms=9)
    assert member.joined(9) == member._replace(assignment=b"", join_waiter=None, synced=False, new=False, deadline_ms=9)
    assert member.syncing(8) == member._replace(sync_waiter=8, synced=True, deadline_ms=None)
    assert member.served(b"more", 9) == member._replace(assignment=b"more", sync_waiter=None, deadline_ms=9)
