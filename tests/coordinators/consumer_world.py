"""Clients of the new protocol around the group machine, like librdkafka and the Java client, and the laws of groups.

The laws must hold whatever happens to messages. The world knows groups only by their answers and member ids.

A client has its messages in order (a connection). From the time when it names what it owns until it gets an answer, it
adopts nothing new. The protocol cannot tell a partition that was not adopted yet from one that was given up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.base.ids import TopicPartition
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import ConsumerConfig, GroupConfig
from headrace.coordinators.groups.consumer.heartbeats import ConsumerHeartbeat
from headrace.coordinators.groups.consumer.model import (
    ConsumerGroup,
    ConsumerHeartbeatReply,
    ConsumerMember,
    Partitions,
)
from headrace.wire.errors import ErrorCode
from tests.coordinators.group_world import Cluster, World

SESSION_MS: Final = 1_000
REBALANCE_MS: Final = 400
NOTHING: Final[Partitions] = frozenset()


def config(*assignors: str) -> GroupConfig:
    return GroupConfig(
        group_initial_rebalance_delay_ms=0,
        consumer=ConsumerConfig(
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_heartbeat_interval_ms=100,
            group_consumer_assignors=assignors or ("uniform", "range"),
        ),
    )


@dataclass
class Client:
    """One consumer: what it knows, and what of it is under way."""

    id: str
    topics: tuple[str, ...] = ("t",)
    instance_id: str | None = None
    epoch: int = 0
    reading: Partitions = NOTHING
    since: dict[TopicPartition, int] = field(default_factory=dict)
    """At which epoch it took up what it reads."""
    target: Partitions | None = None
    """The assignment that it has been given and not adopted yet."""
    tells_all: bool = True
    """Its next heartbeat says everything: it joins, or does not know what has arrived."""
    tells_owned: bool = False
    outbox: deque[ConsumerHeartbeat] = field(default_factory=deque)
    awaits: int | None = None
    """The waiter of its last heartbeat."""
    has_told_owned: bool = False
    """It named what it owns and has heard nothing since."""
    heard_ms: int = 0
    """When the coordinator last took a heartbeat of it."""

    def heartbeat(self, waiter: int) -> ConsumerHeartbeat:
        whole = self.tells_all or self.epoch == 0
        self.has_told_owned |= whole or self.tells_owned
        return ConsumerHeartbeat(
            waiter=waiter,
            member_id=self.id,
            epoch=self.epoch,
            instance_id=self.instance_id,
            client_id="client",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=REBALANCE_MS if whole else None,
            subscribed=self.topics if whole else None,
            owned=self.reading if whole or self.tells_owned else None,
        )

    def take_up(self) -> None:
        """Give up what it is no longer to read, then begin with the rest."""
        if self.target is not None and not self.has_told_owned:
            self.tells_owned |= self.reading != self.target
            self.since = {each: self.since.get(each, self.epoch) for each in self.target}
            self.reading, self.target = self.target, None

    def on_reply(self, reply: ConsumerHeartbeatReply) -> None:
        self.awaits, self.has_told_owned = None, False
        if reply.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.start_over()
        elif reply.error is not ErrorCode.NONE:
            self.tells_all = True
        else:
            self.epoch = reply.epoch
            self.tells_all = self.tells_owned = False
            if reply.assigned is not None:
                self.target = reply.assigned

    def start_over(self) -> None:
        self.epoch, self.reading, self.target, self.tells_all = 0, NOTHING, None, True
        self.since = {}


@dataclass
class Watch:
    """Watches the group after every step, and remembers which member has had which partition since which of its epochs.
    It does not know what was lost with a broker, and says so then."""

    held: dict[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    unsure: set[TopicPartition] = field(default_factory=set)
    members: dict[str, ConsumerMember] = field(default_factory=dict)

    def look(self, group: ConsumerGroup) -> None:
        held = {}
        for member in group.members.values():
            before = self.members.get(member.id)
            given_up = NOTHING if before is None else before.revoking - member.revoking
            for partition in member.assigned | member.revoking:
                owner, since = self.held.get(partition, ("", 0))
                anew = owner != member.id or partition in given_up
                held[partition] = (member.id, member.epoch if anew else since)
                if anew:
                    self.unsure.discard(partition)
        self.held, self.members = held, dict(group.members)

    def lose(self) -> None:
        self.unsure.update(self.held)

    def has_had(self, member_id: str, partition: TopicPartition, epoch: int) -> bool | None:
        """Whether it is the member's, and was at that epoch. None: unknown."""
        owner, since = self.held.get(partition, ("", 0))
        if owner != member_id:
            return False
        return None if partition in self.unsure else since <= epoch


class ConsumerWorld(World):
    """One group, `g`, and its clients."""

    def __init__(self, *assignors: str, autowrite: bool = True) -> None:
        super().__init__(config=config(*assignors), autowrite=autowrite)
        self.cluster = Cluster().having(t=4)
        self.clients: dict[str, Client] = {}
        self.made = 0
        self.watch = Watch()

    def client(self, *topics: str, instance_id: str | None = None) -> Client:
        self.made += 1
        client = Client(f"c{self.made}", topics or ("t",), instance_id)
        self.clients[client.id] = client
        return client

    @property
    def group(self) -> ConsumerGroup:
        found = self.groups.get("g")
        return ConsumerGroup() if found is None or found.consumer is None else found.consumer

    # messages

    def say(self, client: Client) -> None:
        """It sends a heartbeat, unless it waits for the answer to one."""
        if client.awaits is None:
            client.awaits = self.waiter("g")
            client.outbox.append(client.heartbeat(client.awaits))

    def arrive(self, client: Client, *, twice: bool = False) -> None:
        """Its oldest message reaches the coordinator; the answer to a second copy is thrown away."""
        if not client.outbox:
            return
        event = client.outbox.popleft()
        self.ask(client, event)
        if twice:
            self.ask(client, replace(event, waiter=self.waiter("g")))

    def arrive_together(self) -> None:
        """Everybody's oldest message reaches the coordinator in one turn of its loop."""
        clients = [client for client in self.clients.values() if client.outbox]
        events = tuple(client.outbox.popleft() for client in clients)
        before = set(self.group.members)
        if events:
            self.send("g", ev.ConsumerHeartbeats(events))
        for client in clients:
            if client.id in before or client.id in self.group.members:
                client.heard_ms = self.now_ms
        self.check()

    def ask(self, client: Client, event: ConsumerHeartbeat) -> None:
        epoch_before = self.group.members.get(client.id)
        self.send("g", event)
        if self.group.members.get(client.id) is not None or epoch_before is not None:
            client.heard_ms = self.now_ms
        self.check()

    def hear(self, client: Client) -> None:
        """The answer reaches it, if there is one."""
        if client.awaits is not None and client.awaits in self.replies:
            reply = self.replies[client.awaits]
            if isinstance(reply, ConsumerHeartbeatReply):
                client.on_reply(reply)
            else:
                self.miss(client)
        self.check()

    def miss(self, client: Client) -> None:
        """It gives up waiting for an answer."""
        client.awaits, client.tells_all = None, True

    def beat(self, client: Client) -> ConsumerHeartbeatReply:
        """A whole exchange."""
        self.say(client)
        waiter = client.awaits
        assert waiter is not None
        while client.outbox:
            self.arrive(client)
        while waiter not in self.replies:
            self.settle()
        reply = self.replies[waiter]
        assert isinstance(reply, ConsumerHeartbeatReply)
        self.hear(client)
        return reply

    def leave(self, client: Client, epoch: int = -1) -> ConsumerHeartbeatReply:  # type: ignore[override]  # of this protocol
        client.reading, client.target = NOTHING, None
        client.outbox.clear()
        waiter = self.waiter("g")
        event = ConsumerHeartbeat(waiter=waiter, member_id=client.id, epoch=epoch, instance_id=client.instance_id)
        self.send("g", event)
        del self.clients[client.id]
        self.check()
        while waiter not in self.replies:
            self.settle()
        reply = self.replies[waiter]
        assert isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def die(self, client: Client) -> None:
        """It stops reading, and says nothing."""
        del self.clients[client.id]

    def _check(self, name: str) -> None:
        super()._check(name)
        self.watch.look(self.group)

    def lose_broker(self) -> None:
        self.crash()
        self.watch.look(self.group)
        self.watch.lose()
        for client in self.clients.values():
            client.outbox.clear()
            if client.awaits is not None:
                self.miss(client)

    # laws

    def check(self) -> None:
        """Check that no member reads what another one reads. A removed member learns of its removal with its next
        heartbeat."""
        readers: dict[TopicPartition, str] = {}
        for client in self.clients.values():
            if client.id in self.group.members:
                for partition in client.reading:
                    assert partition not in readers, f"{readers[partition]} and {client.id} read {partition}"
                    readers[partition] = client.id

    def quieten(self) -> None:
        """Everybody talks until nothing changes any more, and the log takes what there is."""
        self.refuse_next = ErrorCode.NONE
        while self.in_flight:
            self.settle()
        self.autowrite = True
        for client in self.clients.values():
            client.outbox.clear()
            self.miss(client)
        for _ in range(6 * len(self.clients) + 12):
            self.advance(SESSION_MS // 10)
            for client in self.clients.values():
                self.beat(client)
                client.take_up()
                self.check()

    def shares(self) -> dict[str, Partitions]:
        return {client.id: client.reading for client in self.clients.values()}


def epoch_of(reply: ev.AnyReply) -> int:
    assert isinstance(reply, ConsumerHeartbeatReply)
    assert reply.error is ErrorCode.NONE, reply
    return reply.epoch
