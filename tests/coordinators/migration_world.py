"""Clients of both protocols around one group; the classic ones behave like the Java consumer.

A classic client is eager (it gives all up before joining) or cooperative (KIP-429). The latter reports what it owns,
and gives it up once the assignment says so. The world knows the group only by its answers and member ids.

A removed member has its partitions until it learns of its removal, or until the group's deadline for that has passed.
The deadline is its session, or the rebalance timeout of its last request. Others may not read them before.

The leader of a classic group assigns like Kafka's assignors. A cooperative one gives no partition that a member of the
latest generation still owns to another member. It ignores ownership from an older generation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups.configs import MigrationPolicy
from headrace.coordinators.groups.consumer.model import Partitions
from headrace.coordinators.groups.model import GroupState, Protocol
from headrace.wire.data import CONSUMER_ASSIGNMENT, CONSUMER_SUBSCRIPTION
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import consumer_protocol_assignment as assignment
from headrace.wire.messages import consumer_protocol_subscription as subscription
from tests.coordinators.consumer_world import NOTHING, REBALANCE_MS, SESSION_MS, Client, ConsumerWorld
from tests.coordinators.group_world import Cluster

LOST: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


@dataclass
class ClassicClient:
    """One consumer of the classic protocol."""

    name: str
    topics: tuple[str, ...] = ("t",)
    eager: bool = True
    instance_id: str | None = None
    id: str = ""
    generation: int = -1
    reading: Partitions = NOTHING
    rejoins: bool = True
    """Its next request is JoinGroup; else it is a heartbeat."""
    awaits: int | None = None
    """The waiter of the request that is under way."""
    watches: int | None = None
    """It leads, and shared out the topics of that version."""
    sent: ev.Join | None = None
    """Its last JoinGroup."""
    joined: ev.JoinReply | None = None
    """It is to ask for its assignment."""
    heard_ms: int = 0
    """When the coordinator got the last request that it answered as a member's."""
    to_join_ms: int | None = None
    """Since when it has been asked to join again, and has not."""
    to_sync_ms: int | None = None
    """Since when it has joined, and has not asked for its assignment."""
    left_behind: bool = False
    """A static member without which a generation was formed, and which has had no assignment since."""

    def metadata(self, cluster: Cluster) -> bytes:
        owned = tuple(
            subscription.TopicPartition(topic=name, partitions=tuple(sorted(indexes)))
            for name, shape in cluster.shapes.items()
            if (indexes := [each.partition for each in self.reading if each.topic_id == shape.id])
        )
        said = subscription.ConsumerProtocolSubscription(
            topics=self.topics, owned_partitions=owned, generation_id=self.generation
        )
        data: bytes = CONSUMER_SUBSCRIPTION.encode(3, said)
        return data

    def on_error(self, error: ErrorCode) -> None:
        self.rejoins = True
        if error in LOST:
            self.reading, self.generation, self.left_behind = NOTHING, -1, False
            self.id = "" if error is not ErrorCode.ILLEGAL_GENERATION else self.id

    def on_joined(self, reply: ev.JoinReply) -> None:
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = reply.member_id
        elif reply.error is not ErrorCode.NONE:
            self.on_error(reply.error)
        else:
            self.id, self.generation, self.joined = reply.member_id, reply.generation, reply

    def on_synced(self, reply: ev.SyncReply, cluster: Cluster) -> None:
        if reply.error is not ErrorCode.NONE:
            self.on_error(reply.error)
            return
        given = assigned(reply.assignment, cluster)
        self.rejoins = not self.eager and not self.reading <= given
        self.reading, self.left_behind = given, False


def assigned(data: bytes, cluster: Cluster) -> Partitions:
    if not data:
        return NOTHING
    _, read = CONSUMER_ASSIGNMENT.decode(data)
    return frozenset(
        TopicPartition(shape.id, PartitionIndex(index))
        for topic in read.assigned_partitions
        if (shape := cluster.shape(topic.topic)) is not None
        for index in topic.partitions
    )


def shared_out(joined: ev.JoinReply, cluster: Cluster, *, eager: bool) -> dict[str, bytes]:
    """The leader's assignment from its members' subscriptions."""
    said = {one.id: CONSUMER_SUBSCRIPTION.decode(one.subscription)[1] for one in joined.members}
    latest = max(one.generation_id for one in said.values())
    owner = {
        (topic.topic, index): member_id
        for member_id, one in said.items()
        if one.generation_id == latest
        for topic in one.owned_partitions
        for index in topic.partitions
    }
    shares: dict[str, list[tuple[str, int]]] = {member_id: [] for member_id in said}
    for name, shape in sorted(cluster.shapes.items()):
        takers = sorted(member_id for member_id, one in said.items() if name in one.topics)
        for index in range(shape.partitions if takers else 0):
            to = min(takers, key=lambda one: (len(shares[one]), one))
            shares[to].append((name, index))
    if not eager:
        shares = {one: [each for each in share if owner.get(each, one) == one] for one, share in shares.items()}
    return {
        member_id: CONSUMER_ASSIGNMENT.encode(
            3,
            assignment.ConsumerProtocolAssignment(
                assigned_partitions=tuple(
                    assignment.TopicPartition(topic=name, partitions=(index,)) for name, index in share
                )
            ),
        )
        for member_id, share in shares.items()
    }


def _tells_generation(reply: object) -> bool:
    return isinstance(reply, ev.JoinReply) and reply.error is ErrorCode.NONE


class MigrationWorld(ConsumerWorld):
    """One group, `g`, with clients of both kinds."""

    def __init__(
        self,
        *,
        eager: bool = True,
        autowrite: bool = True,
        policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
    ) -> None:
        super().__init__(autowrite=autowrite)
        self.config = replace(self.config, group_min_session_timeout_ms=SESSION_MS, migration=policy)
        self.eager = eager
        self.classics: dict[str, ClassicClient] = {}
        self.requests: dict[int, tuple[ClassicClient, int]] = {}
        """By waiter: whose it is and when it came, until it is answered; the client may have ceased to wait."""
        self.meant: dict[int, Cluster] = {}
        """By waiter: the topics that the names in its answer are of. A topic may be made again under its name before
        the client hears it, and no client of this protocol could tell."""
        self.formed = 0
        """The last generation of the classic group that some member was told of."""

    def classic(self, *topics: str, instance_id: str | None = None) -> ClassicClient:
        self.made += 1
        client = ClassicClient(f"k{self.made}", topics or ("t",), self.eager, instance_id)
        self.classics[client.name] = client
        return client

    # one step of a classic client

    def act(self, client: ClassicClient) -> None:
        """It hears what it waits for, or sends what is next."""
        if client.awaits is not None:
            self._hear(client)
        elif client.joined is not None:
            self._sync(client, client.joined)
        elif client.rejoins or client.watches not in (None, self.cluster.version):
            self._join(client)
        else:
            self._beat(client)
        self.check()

    def _join(self, client: ClassicClient) -> None:
        if client.eager:
            client.reading = NOTHING
        self.made += 1
        client.awaits = self.waiter("g")
        event = ev.Join(
            waiter=client.awaits,
            member_id=client.id,
            instance_id=client.instance_id,
            new_member_id=f"{client.name}-{self.made}",
            require_known_id=True,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(Protocol("range" if client.eager else "sticky", client.metadata(self.cluster)),),
            skips_assignment=True,
        )
        client.sent = event
        self._ask(client, event)

    def _ask(self, client: ClassicClient, event: ev.Join | ev.Sync | ev.Heartbeat) -> None:
        self.requests[event.waiter] = client, self.now_ms
        self.send("g", event)

    def repeat_join(self, client: ClassicClient) -> None:
        """A second copy of what it waits for the answer to; the answer to that is thrown away."""
        if client.sent is not None and client.awaits == client.sent.waiter:
            twin = f"{client.name}-{self.made}-twin"
            self.send("g", client.sent._replace(waiter=self.waiter("g"), new_member_id=twin))
            self.check()

    def _sync(self, client: ClassicClient, joined: ev.JoinReply) -> None:
        client.joined, client.awaits = None, self.waiter("g")
        leads = joined.leader == client.id
        client.watches = self.cluster.version if leads else None
        event = ev.Sync(
            waiter=client.awaits,
            member_id=client.id,
            instance_id=client.instance_id,
            generation=client.generation,
            protocol_type="consumer",
            protocol=joined.protocol,
            assignments=shared_out(joined, self.cluster, eager=client.eager) if leads else {},
        )
        self._ask(client, event)

    def _beat(self, client: ClassicClient) -> None:
        client.awaits = self.waiter("g")
        event = ev.Heartbeat(
            waiter=client.awaits,
            member_id=client.id,
            instance_id=client.instance_id,
            generation=client.generation,
        )
        self._ask(client, event)

    def _hear(self, client: ClassicClient) -> None:
        if client.awaits not in self.replies:
            return
        reply, meant = self.replies[client.awaits], self.meant[client.awaits]
        client.awaits = None
        match reply:
            case ev.JoinReply():
                client.on_joined(reply)
            case ev.SyncReply():
                client.on_synced(reply, meant)
            case ev.HeartbeatReply(error=ErrorCode.NONE):
                pass
            case ev.HeartbeatReply(error=error):
                client.on_error(error)

    def lose_answer(self, client: ClassicClient) -> None:
        """It gives up waiting, and begins again."""
        client.awaits, client.joined, client.rejoins = None, None, True

    def go(self, client: ClassicClient) -> None:
        """It leaves, as a client that is closed."""
        del self.classics[client.name]
        if client.id:
            waiter = self.waiter("g")
            self.send("g", ev.Leave(waiter=waiter, members=(ev.Leaver(client.id, client.instance_id),)))
        self.check()

    def die_silently(self, client: ClassicClient) -> None:
        del self.classics[client.name]

    def lose_broker(self) -> None:
        super().lose_broker()
        for client in self.classics.values():
            if client.awaits is not None:
                self.lose_answer(client)

    # reports and requests

    def _carry_out(self, group: str, effects: list[ev.Effect]) -> None:
        self._note_who_is_left_behind(effects)
        for effect in effects:
            match effect:
                case ev.Rebalancing():
                    for client in self.classics.values():
                        if client.id in self.member_ids:  # others are not asked, and have no more time by it
                            client.to_join_ms = self.now_ms
                case ev.Reply(waiter=waiter, reply=reply) if waiter in self.requests:
                    self.meant[waiter] = self.cluster
                    self._on_answered(*self.requests.pop(waiter), reply)
        super()._carry_out(group, effects)

    def _note_who_is_left_behind(self, effects: list[ev.Effect]) -> None:
        found = self.groups.get("g")
        if found is None or found.consumer is not None or found.generation <= self.formed:
            return
        answered = [each.waiter for each in effects if isinstance(each, ev.Reply) and _tells_generation(each.reply)]
        if answered:
            self.formed = found.generation
            joined = [client for waiter, (client, _) in self.requests.items() if waiter in answered]
            for client in self.classics.values():
                if client.instance_id is not None and client.id in found.members and client not in joined:
                    client.left_behind = True

    def _on_answered(self, client: ClassicClient, came_ms: int, reply: ev.AnyReply) -> None:
        assert isinstance(reply, ev.JoinReply | ev.SyncReply | ev.HeartbeatReply)
        if reply.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            client.heard_ms = max(client.heard_ms, came_ms)
        match reply:
            case ev.JoinReply(error=ErrorCode.NONE):
                waited = self.groups["g"].consumer is None  # for the others, and the time is that of the generation
                client.to_join_ms, client.to_sync_ms = None, self.now_ms if waited else came_ms
            case ev.SyncReply(error=ErrorCode.NONE):
                client.to_sync_ms = None
            case _ if reply.error is ErrorCode.REBALANCE_IN_PROGRESS and client.to_join_ms is None:
                client.to_join_ms = came_ms

    def keeps_until_ms(self, client: ClassicClient) -> int:
        """Until when it is not to be put out, save by its own doing."""
        asked = [since for since in (client.to_join_ms, client.to_sync_ms) if since is not None]
        asked += [came for one, came in self.requests.values() if one is client]  # the answer may ask for something
        return min([client.heard_ms + SESSION_MS, *(since + REBALANCE_MS for since in asked)])

    def crash(self) -> None:
        """Forget the demands on members, except that all must join where the log says so."""
        super().crash()
        self.requests.clear()
        found = self.groups.get("g")
        prepares = found is not None and found.state is GroupState.PREPARING
        for client in self.classics.values():
            if client.id in self.member_ids:
                client.to_join_ms, client.to_sync_ms = self.now_ms if prepares else None, None

    # laws

    @property
    def everybody(self) -> list[Client | ClassicClient]:
        return [*self.clients.values(), *self.classics.values()]

    @property
    def member_ids(self) -> set[str]:
        found = self.groups.get("g")
        return set() if found is None else {*found.members, *self.group.members}

    def check(self) -> None:
        readers: dict[TopicPartition, str] = {}
        for client in self.everybody:
            for partition in client.reading if self._counts(client) else ():
                assert partition not in readers, f"{readers[partition]} and {client.id} read {partition}"
                readers[partition] = client.id

    def _counts(self, client: Client | ClassicClient) -> bool:
        """Whether it is a member, or was removed before its time and does not know it. A static member of a classic
        group that the others left behind (KIP-345) does not count. Its partitions may be assigned, and its generation
        fences it. When it has joined again, it still has them until it is told its assignment, as in Kafka."""
        found = self.groups.get("g")
        if found is None:
            return False
        if client.id not in self.member_ids:
            return isinstance(client, ClassicClient) and self.now_ms < self.keeps_until_ms(client)
        if not isinstance(client, ClassicClient) or client.instance_id is None:
            return True
        if client.left_behind:
            return False
        member = self.group.members.get(client.id)
        return client.generation >= (found.generation if member is None else member.epoch)

    def quieten(self) -> None:
        self.refuse_next = ErrorCode.NONE
        while self.in_flight:
            self.settle()
        self.autowrite = True
        for client in self.clients.values():
            client.outbox.clear()
            self.miss(client)
        for _ in range(8 * (len(self.clients) + len(self.classics)) + 15):
            self.advance(SESSION_MS // 10)
            for classic in self.classics.values():
                for _ in range(2):
                    self.act(classic)
            for client in self.clients.values():
                self.beat(client)
                client.take_up()
                self.check()

    def all_shares(self) -> dict[str, Partitions]:
        return {client.id: client.reading for client in self.everybody}
