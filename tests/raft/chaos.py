"""One quorum, one seed: everything that can go wrong does, in an order that the seed decides; then nothing does.

Messages are lost, doubled, delayed and reordered, and links are cut one way or both. Members pause, crash without their
unsynced data, and come back, some with an empty disk. The membership changes, the leadership moves, logs become
snapshots. Each seed has its own mix of these. After every step the checkers look; in the end all must agree, and go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from headrace.base.ids import NO_LEADER
from headrace.raft.events import (
    Campaign,
    Event,
    LeaderDied,
    Persisted,
    Propose,
    ProposeChange,
    ReadIndex,
    Ready,
    Tick,
    Transfer,
)
from headrace.raft.membership import AddLearner, Change, Demote, Membership, Peer, Promote, Remove
from headrace.raft.messages import AppendAnswer, Message
from headrace.raft.state import Settings
from tests.raft.checkers import Broken, Checkers
from tests.raft.member import NOBODY, Member, peer

SETTINGS = Settings(
    election_ticks=4,
    append_bytes_max=12,
    window_messages_max=3,
    window_bytes_max=40,
    uncommitted_bytes_max=400,
    entries_kept=3,
    snapshot_patience_rounds=3,
)
NETWORK_MAX = 300
MOOD_STEPS = 200


class Chaos:
    """A run. `story` is what happened, for whoever looks at a failure."""

    def __init__(self, seed: int, *, paper_only: bool = False) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.settings = replace(SETTINGS, append_bytes_max=pick((1, 12)))
        size = pick((3, 3, 3, 4, 5, 5))
        self.peers = [peer(node) for node in range(1, size + 1)]
        membership = Membership(frozenset(self.peers))
        self.members = {me.node: self._member(me, membership) for me in self.peers}
        for node in range(size + 1, size + pick((1, 2, 3))):
            self.members[peer(node).node] = self._member(peer(node), NOBODY)
        self.lives = dict.fromkeys(self.members, 1)
        self.network: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        self.paused: set[int] = set()
        self.checkers = Checkers(paper_only=paper_only)
        self.story: list[str] = []
        self.led: set[Peer] = set()
        self.late: list[Message] = []
        """On their way for a long time."""
        self.proposed = 0
        self.reads = 0
        self.changes = pick((0.0, 0.5, 2.0))
        self.snapshots = pick((0.0, 0.5, 2.0))
        self.wipes = pick((0.0, 0.0, 0.2))

    def mood(self) -> list[tuple[Callable[[], None], float]]:
        """How likely each thing is, for a while."""
        pick = self.random.choice
        self.drop = pick((0.0, 0.02, 0.1, 0.4))
        self.double = pick((0.0, 0.05, 0.2))
        self.delay = pick((0.0, 0.1, 0.3))
        self.orderly = pick((0.0, 0.5, 0.95))
        return [
            (self.deliver, pick((20.0, 60.0, 60.0))),
            (self.thaw, pick((0.0, 2.0, 8.0))),
            (self.tick, pick((6.0, 15.0, 30.0))),
            (self.persist, pick((10.0, 30.0, 60.0))),
            (self.propose, pick((2.0, 8.0))),
            (self.crash, pick((0.0, 0.3, 1.5))),
            (self.bounce, pick((0.0, 0.5, 6.0))),
            (self.restart, 2.0),
            (self.partition, pick((0.0, 0.3, 1.0))),
            (self.isolate, pick((0.0, 0.5, 2.0))),
            (self.heal, pick((0.5, 2.0, 4.0))),
            (self.pause, pick((0.0, 0.5))),
            (self.resume, 1.0),
            (self.storm, pick((0.0, 0.5, 4.0))),
            (self.coup, pick((0.0, 1.0, 3.0, 8.0))),
            (self.comeback, pick((0.0, 1.0, 3.0))),
            (self.change, self.changes),
            (self.transfer, pick((0.0, 0.3, 1.0))),
            (self.snapshot, self.snapshots),
            (self.read, 1.0),
            (self.accuse, pick((0.0, 0.2))),
            (self.wipe, self.wipes),
        ]

    def _member(self, me: Peer, membership: Membership) -> Member:
        return Member(me, membership, random=self.random, settings=self.settings)

    def run(self, steps: int) -> None:
        for _ in range(steps // MOOD_STEPS):
            actions, weights = zip(*self.mood(), strict=True)
            for action in self.random.choices(actions, weights, k=MOOD_STEPS):
                action()
        self.calm()

    def tell(self, what: str) -> None:
        self.story.append(what)

    def step(self, member: Member, event: Event) -> Ready:
        ready = member.step(event)
        self._after(member, ready)
        return ready

    def _after(self, member: Member, ready: Ready | None) -> None:
        self.network += member.sent
        member.sent = []
        while len(self.network) > NETWORK_MAX:
            self.network.pop(self.random.randrange(0, len(self.network)))
        self.checkers.after(member, ready, self.members.values())

    def running(self) -> list[Member]:
        return [m for m in self.members.values() if m.alive and m.me.node not in self.paused]

    def some(self) -> Member | None:
        running = self.running()
        return self.random.choice(running) if running else None

    def leader(self) -> Member | None:
        leaders = [m for m in self.running() if m.core.leads]
        return self.random.choice(leaders) if leaders else None

    def deliver(self) -> None:
        if not self.network:
            self.tick()
            return
        at = 0 if self.random.random() < self.orderly else self.random.randrange(0, len(self.network))
        message = self.network[at]
        if self.random.random() >= self.double:
            self.network.pop(at)
        if self.random.random() < self.delay:
            self.late.append(message)
            if not isinstance(message, AppendAnswer):
                return  # of an acknowledgement a second one comes late
        target = self.members[message.target.node]
        lost = self.random.random() < self.drop or (message.source.node, message.target.node) in self.cut
        if lost or not target.alive:
            return
        if target.me.node in self.paused:
            return
        self.tell(f"{message}")
        self.step(target, message)

    def thaw(self) -> None:
        """Something that was sent long ago arrives after all, best of all where it is out of place: to a leader of a
        later term."""
        if not self.late:
            return
        stale = [at for at, message in enumerate(self.late) if self._is_stale(message)]
        if stale and self.random.random() < 0.7:
            message = self.late.pop(self.random.choice(stale))
            self.tell(f"late: {message}")
            self.step(self.members[message.target.node], message)
        else:
            self.network.append(self.late.pop(self.random.randrange(0, len(self.late))))

    def _is_stale(self, message: Message) -> bool:
        target = self.members[message.target.node]
        leads = target.core.leads and target.core.term > message.term and target in self.running()
        return leads and isinstance(message, AppendAnswer)

    def tick(self) -> None:
        if (member := self.some()) is not None:
            self.tell(f"tick {member.me.node}")
            self.step(member, Tick())

    def persist(self) -> None:
        waiting = [m for m in self.running() if m.disk.under_way]
        if not waiting:
            self.deliver()
        else:
            member = self.random.choice(waiting)
            self.tell(f"persist {member.me.node}")
            self._persist(member)

    def _persist(self, member: Member) -> None:
        write = member.disk.write_next().write
        assert write is not None
        self.step(member, Persisted(write))

    def propose(self) -> None:
        if (member := self.leader()) is not None:
            count = self.random.choice((1, 1, 2, 6))
            data = tuple(b"e%d" % (self.proposed + at) for at in range(count))
            self.proposed += count
            self.tell(f"propose {member.me.node} {count}")
            self.step(member, Propose(data))

    def crash(self) -> None:
        if (member := self.some()) is not None:
            self.tell(f"crash {member.me.node}")
            for message in [m for m in self.network if m.source == member.me and self.random.random() < 0.5]:
                self.network.remove(message)
            member.crash(written=self.random.randrange(0, len(member.disk.under_way) + 1))

    def bounce(self) -> None:
        """Crash and come back at once: all that was only in memory is gone, and nobody noticed. Now and then the
        leader, or one that has voted for somebody."""
        roll = self.random.random()
        voted = [m for m in self.running() if m.disk.hard_state.vote not in (NO_LEADER, m.me.node)]
        member = self.leader() if roll < 0.3 else self.random.choice(voted) if voted and roll < 0.7 else self.some()
        if member is not None:
            self.tell(f"bounce {member.me.node}")
            member.crash(written=self.random.randrange(0, len(member.disk.under_way) + 1))
            self._restart(member)

    def storm(self) -> None:
        """Nobody is loyal any more, and several stand at once."""
        self.tell("storm")
        for member in self.running():
            if member.core.leader is not None and self.random.random() < 0.8:
                self.step(member, LeaderDied(member.core.leader, member.core.term))
        for member in self.running():
            if self.random.random() < 0.5:
                self.step(member, Campaign())

    def coup(self) -> None:
        """A leader is cut off with entries that few have, or none, and somebody else stands."""
        if (leader := self.leader()) is None:
            return
        me, rest = leader.me.node, [node for node in self.members if node != leader.me.node]
        friends: set[int] = set(self.random.sample(rest, self.random.choice((0, 0, 1, 1, 2))))
        side = {me} | friends
        self.cut = {(a, b) for a in self.members for b in self.members if (a in side) != (b in side)}
        self.tell(f"coup against {sorted(side)}")
        for _ in range(self.random.randrange(1, 10)):
            self.step(leader, Propose((b"e%d" % self.proposed,)))
            self.proposed += 1
        self._reach(leader, friends)
        others = [member for member in self.running() if member.me.node not in side]
        for member in others:
            if member.core.leader is not None:
                self.step(member, LeaderDied(member.core.leader, member.core.term))
        deposed = [member for member in others if member.me in self.led]
        self.led.add(leader.me)
        if others:
            self.step(self.random.choice(deposed or others), Campaign())

    def _reach(self, leader: Member, friends: set[int]) -> None:
        """The friends have it on their disks at once; that they say so comes late."""
        for message in [m for m in self.network if m.source == leader.me and m.target.node in friends]:
            self.network.remove(message)
            if (friend := self.members[message.target.node]) in self.running():
                self.step(friend, message)
                while friend.disk.under_way:
                    self._persist(friend)
        said = [m for m in self.network if m.target == leader.me and m.source.node in friends]
        self.network = [m for m in self.network if m not in said]
        self.late += said

    def comeback(self) -> None:
        """Somebody who was deposed gets the leadership back, with the log of the one who had it since."""
        if (leader := self.leader()) is None:
            return
        deposed = sorted(self.led & leader.core.membership.voters - {leader.me})
        if deposed:
            self.cut.clear()
            self.tell(f"comeback of {deposed}")
            self.step(leader, Transfer(self.random.choice(deposed)))

    def restart(self) -> None:
        dead = [m for m in self.members.values() if not m.alive]
        if dead:
            self._restart(self.random.choice(dead))

    def _restart(self, member: Member) -> None:
        self.tell(f"restart {member.me.node}")
        member.restart()
        self.checkers.forget(member)
        self.checkers.after(member, None, self.members.values())

    def partition(self) -> None:
        nodes = list(self.members)
        side = {node for node in nodes if self.random.random() < 0.5}
        one_way = self.random.random() < 0.3
        self.cut = {
            (a, b)
            for a in nodes
            for b in nodes
            if (a in side and b not in side) or (a not in side and b in side and not one_way)
        }
        self.tell(f"cut {sorted(self.cut)}")

    def isolate(self) -> None:
        """Mostly the leader, in one direction or both, from some or all."""
        member = self.leader() if self.random.random() < 0.7 else self.some()
        if member is None:
            return
        me, ways = member.me.node, self.random.choice((1, 2, 3))
        others = [node for node in self.members if node != me and self.random.random() < 0.8]
        self.cut = {(me, node) for node in others if ways & 1} | {(node, me) for node in others if ways & 2}
        self.tell(f"cut {sorted(self.cut)}")

    def heal(self) -> None:
        self.cut.clear()

    def pause(self) -> None:
        if (member := self.some()) is not None:
            self.tell(f"pause {member.me.node}")
            self.paused.add(member.me.node)

    def resume(self) -> None:
        if self.paused:
            self.paused.remove(self.random.choice(sorted(self.paused)))

    def change(self) -> None:
        if (member := self.leader()) is not None:
            change = self._some_change(member.core.membership)
            ready = self.step(member, ProposeChange(change))
            self.tell(f"change {member.me.node} {change}: {ready.refusal}")

    def _some_change(self, membership: Membership) -> Change:
        """Towards those who are there: a wiped member is replaced, a newcomer taken in; else anything."""
        present = [m.me for m in self.members.values()]
        strangers = [me for me in present if me not in membership.members]
        learners = sorted(membership.learners & set(present))
        roll = self.random.random()
        if strangers and roll < 0.5:
            return AddLearner(self.random.choice(strangers))
        if learners and roll < 0.8:
            return Promote(self.random.choice(learners))
        target = self.random.choice(sorted(membership.voters))
        rest = membership.voters - {target}
        if len(rest & set(present)) < len(rest) // 2 + 1:  # an operator who does that has asked for it
            target = self.random.choice(sorted(membership.voters - set(present)) or [target])
        return Demote(target) if self.random.random() < 0.5 else Remove(target)

    def transfer(self) -> None:
        if (member := self.leader()) is not None:
            target = self.random.choice(sorted(member.core.membership.voters))
            self.tell(f"transfer {member.me.node} {target.node}")
            self.step(member, Transfer(target))

    def snapshot(self) -> None:
        if (member := self.some()) is not None:
            self.tell(f"snapshot {member.me.node}")
            member.take_snapshot()
            self._after(member, None)

    def read(self) -> None:
        if (member := self.leader()) is not None:
            self.reads += 1
            self.checkers.reads[self.reads] = self.checkers.commit_index
            self.step(member, ReadIndex(self.reads))

    def accuse(self) -> None:
        """Mostly of who is dead; now and then wrongly, for safety must not rest on it."""
        member = self.some()
        if member is None or (leader := member.core.leader) is None:
            return
        if self.members[leader.node].alive and self.random.random() < 0.8:
            return
        self.tell(f"accuse {member.me.node} {leader.node}")
        self.step(member, LeaderDied(leader, member.core.term))

    def wipe(self) -> None:
        """A disk is lost, where every membership that may count can do without one more."""
        dead = [m for m in self.members.values() if not m.alive]
        if not dead:
            return
        victim = self.random.choice(dead)
        if self._can_lose(victim.me):
            self.lives[victim.me.node] += 1
            self.tell(f"wipe {victim.me.node}")
            new = self._wiped(victim.me)
            self.members[new.node] = self._member(new, NOBODY)

    def _wiped(self, old: Peer) -> Peer:
        return peer(old.node, self.lives[old.node])

    def _can_lose(self, gone: Peer) -> bool:
        lost = {member.me for member in self.members.values()} - {gone}
        for member in self.members.values():
            for membership in (member.core.membership, member.disk.mark.membership):
                if membership.voters and len(membership.voters & lost) < membership.quorum:
                    return False
        return True

    def calm(self) -> None:
        """Nothing fails any more: what was begun must end, and new entries must reach every member."""
        self.tell("calm")
        self.network += self.late
        self.cut.clear()
        self.paused.clear()
        for member in self.members.values():
            if not member.alive:
                self._restart(member)
        self._settle(60)
        self._await("a leader that has committed", lambda: self._settled_leader() is not None)
        leader = self._settled_leader()
        assert leader is not None
        self._await("an accepted proposal", lambda: self._propose_at_end())
        self._await("everyone there", self._all_agree)

    def _settled_leader(self) -> Member | None:
        return next((m for m in self.members.values() if m.core.has_committed_own), None)

    def _propose_at_end(self) -> bool:
        leader = self._settled_leader()
        return leader is not None and self.step(leader, Propose((b"end",))).refusal is None

    def _all_agree(self) -> bool:
        leader = self._settled_leader()
        if leader is None or leader.core.log.commit_index < leader.core.log.last_index:
            return False
        there = [m for m in self.members.values() if m.me in leader.core.membership.members]
        return all(m.state == leader.state for m in there)

    def _await(self, what: str, holds: Callable[[], bool]) -> None:
        for _ in range(60):
            if holds():
                return
            self._settle(4)
        raise Broken(f"liveness: {what} did not come")

    def _settle(self, ticks: int) -> None:
        """Each tick, and all that follows from it."""
        for _ in range(ticks):
            for member in list(self.members.values()):
                self.step(member, Tick())
            for _ in range(20_000):
                if not self._quiet_step():
                    break
            else:
                raise Broken("liveness: messages without end")

    def _quiet_step(self) -> bool:
        for member in self.members.values():
            if member.disk.under_way:
                self._persist(member)
                return True
        if not self.network:
            return False
        message = self.network.pop(0)
        self.tell(f"{message}")
        self.step(self.members[message.target.node], message)
        return True
