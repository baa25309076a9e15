"""Golden transcripts: a quorum in memory, told step by step what happens, and what it does about it.

A transcript is a text of commands (`> campaign 1`), each followed by what came of it. `HEADRACE_REWRITE=1` writes what
comes of them today in place of what is there; the difference is then for a person to judge. Chance is steady: every
timeout is the shortest, so elections begin when the transcript says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.raft.candidacy import Candidacy
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
from headrace.raft.leading import Leadership
from headrace.raft.membership import AddLearner, Change, Demote, Membership, Peer, Promote, Remove
from headrace.raft.messages import (
    AppendAnswer,
    AppendRefusal,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    VoteAnswer,
    VoteRequest,
)
from headrace.raft.state import Settings
from tests.raft.checkers import Checkers
from tests.raft.member import NOBODY, Member, peer


class Steady:
    """Chance that always falls on the least."""

    def random(self) -> float:
        return 0.0

    def randrange(self, start: int, stop: int) -> int:
        return start

    def getrandbits(self, k: int, /) -> int:
        return 0


def rewritten(transcript: str) -> str:
    """The transcript with what its commands lead to today."""
    script, lines = Script(), []
    for line in transcript.splitlines():
        if line.startswith("> "):
            lines += [line, *script.run(line[2:])]
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


class Script:
    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self._lives: dict[int, int] = {}
        self._network: list[Message] = []
        self._held: list[Message] = []
        self._cut: set[tuple[int, int]] = set()
        self._settings = Settings()
        self._checkers = Checkers()
        self._lines: list[str] = []
        self._quiet = False

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        self._lines = []
        do: Callable[[list[str]], None] = getattr(self, f"_do_{name}")
        do(words)
        return self._lines

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._lines.append(line)

    # state

    def _do_cluster(self, words: list[str]) -> None:
        """`cluster VOTERS [LEARNERS [STRANGERS]] [setting=value ...]`: the first nodes vote."""
        numbers = [int(word) for word in words if "=" not in word] + [0, 0]
        changed = {key: int(value) for key, value in (word.split("=") for word in words if "=" in word)}
        self._settings = replace(Settings(election_ticks=5, entries_kept=0), **changed)
        voters, learners, strangers = numbers[:3]
        everyone = [peer(node) for node in range(1, voters + learners + 1)]
        membership = Membership(frozenset(everyone[:voters]), frozenset(everyone[voters:]))
        for me in everyone:
            self._add(me, membership)
        for node in range(voters + learners + 1, voters + learners + strangers + 1):
            self._add(peer(node), NOBODY)

    def _add(self, me: Peer, membership: Membership) -> Member:
        member = Member(me, membership, random=Steady(), settings=self._settings)
        self._members[me.node] = member
        return member

    def _do_log(self, words: list[str]) -> None:
        """`log NODE TERM [TERM ...] [now=TERM]`: what it has on its disk, and the term that it is in."""
        member = self._members[int(words[0])]
        terms = [int(word) for word in words[1:] if "=" not in word]
        now = [int(word.split("=")[1]) for word in words if "=" in word]
        member.disk.entries = [Entry(term, at, b"%d.%d" % (term, at)) for at, term in enumerate(terms, 1)]
        member.disk.hard_state = HardState(now[0] if now else max(terms, default=0))
        member.crash()
        member.restart()

    def _do_state(self, words: list[str]) -> None:
        for member in self._members.values():
            self._say(self._state(member))

    def _state(self, member: Member) -> str:
        core, log = member.core, member.core.log
        if not member.alive:
            return f"{member.me.node}: dead"
        leader = "nobody" if core.leader is None else f"{core.leader.node}"
        role = _role(member)
        members = _membership(core.membership)
        what = f"term {core.term} {role} of {leader}" if role == "follower" else f"term {core.term} {role}"
        entries = " ".join(str(entry.term) for entry in log.read(log.base_index + 1, 1 << 40))
        base = f"({log.base_index} in snapshot) " if log.base_index else ""
        return f"{member.me.node}: {what}, commit {log.commit_index}, log {base}{entries}, {members}"

    def _do_progress(self, words: list[str]) -> None:
        """`progress LEADER`: what it knows of the others."""
        role = self._members[int(words[0])].core.role
        assert isinstance(role, Leadership)
        for of, progress in role.sender.progress.items():
            self._say(f"{of.node}: {progress.mode.value}, match {progress.match_index}, next {progress.next_index}")

    # events

    def _step(self, node: int, event: Event) -> None:
        member = self._members[node]
        before = (_role(member), member.core.term)
        ready = member.step(event)
        if (after := (_role(member), member.core.term)) != before:
            self._say(f"{node}: {after[0]} in term {after[1]}")
        for line in _told(ready):
            self._say(f"{node}: {line}")
        for message in member.sent:
            self._say(_message(message))
        self._network += member.sent
        member.sent = []
        self._checkers.after(member, ready, self._members.values())

    def _do_campaign(self, words: list[str]) -> None:
        self._step(int(words[0]), Campaign())

    def _do_tick(self, words: list[str]) -> None:
        """`tick NODE [TIMES]`"""
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self._step(int(words[0]), Tick())

    def _do_propose(self, words: list[str]) -> None:
        self._step(int(words[0]), Propose(tuple(word.encode() for word in words[1:])))

    def _do_change(self, words: list[str]) -> None:
        """`change LEADER add|promote|demote|remove NODE`"""
        kinds: dict[str, Callable[[Peer], Change]] = {
            "add": AddLearner,
            "promote": Promote,
            "demote": Demote,
            "remove": Remove,
        }
        node = int(words[2])
        target = self._members[node].me if words[1] == "add" else self._named(int(words[0]), node)
        self._step(int(words[0]), ProposeChange(kinds[words[1]](target)))

    def _named(self, leader: int, node: int) -> Peer:
        """As the leader knows it."""
        known = [member for member in self._members[leader].core.membership.members if member.node == node]
        return known[0] if known else self._members[node].me

    def _do_transfer(self, words: list[str]) -> None:
        self._step(int(words[0]), Transfer(self._members[int(words[1])].me))

    def _do_read(self, words: list[str]) -> None:
        context = len(self._checkers.reads) + 1
        self._checkers.reads[context] = self._checkers.commit_index
        self._step(int(words[0]), ReadIndex(context))

    def _do_died(self, words: list[str]) -> None:
        """`died NODE LEADER`: it sees that the leader's process is dead."""
        member = self._members[int(words[0])]
        self._step(int(words[0]), LeaderDied(self._members[int(words[1])].me, member.core.term))

    def _do_snapshot(self, words: list[str]) -> None:
        self._members[int(words[0])].take_snapshot()

    def _do_persist(self, words: list[str]) -> None:
        """`persist NODE ...`: all that is under way to its disk; `persist` alone: to every disk."""
        for node in [int(word) for word in words] or list(self._members):
            member = self._members[node]
            while member.disk.under_way:
                self._persist_next(member)

    def _do_write(self, words: list[str]) -> None:
        """`write NODE`: the oldest write under way there."""
        self._persist_next(self._members[int(words[0])])

    def _persist_next(self, member: Member) -> None:
        write = member.disk.write_next().write
        assert write is not None
        self._step(member.me.node, Persisted(write))

    def _do_deliver(self, words: list[str]) -> None:
        """`deliver [A>B ...]`: what is under way there, or everywhere, now."""
        for message in self._taken(words):
            self._deliver(message)

    def _taken(self, words: list[str]) -> list[Message]:
        links = [tuple(map(int, word.split(">"))) for word in words]
        taken = [m for m in self._network if not links or (m.source.node, m.target.node) in links]
        self._network = [m for m in self._network if m not in taken]
        return taken

    def _deliver(self, message: Message) -> None:
        target = self._members[message.target.node]
        if (message.source.node, message.target.node) in self._cut or not target.alive:
            return
        self._step(message.target.node, message)

    def _do_drop(self, words: list[str]) -> None:
        self._taken(words)

    def _do_hold(self, words: list[str]) -> None:
        """Messages under way there arrive with `release`."""
        self._held += self._taken(words)

    def _do_release(self, words: list[str]) -> None:
        held, self._held = self._held, []
        for message in held:
            self._deliver(message)

    def _do_cut(self, words: list[str]) -> None:
        """`cut 1>2 3-4`: one way, or both."""
        for word in words:
            a, b = (int(node) for node in word.replace("-", ">").split(">"))
            self._cut |= {(a, b), (b, a)} if "-" in word else {(a, b)}

    def _do_heal(self, words: list[str]) -> None:
        self._cut.clear()

    def _do_settle(self, words: list[str]) -> None:
        """`settle [NODE ...]`: every write (there) and every message, until there are none; only what is applied is
        told."""
        nodes = [int(word) for word in words] or list(self._members)
        before = {node: len(member.applied) for node, member in self._members.items()}
        self._quiet = True
        while self._network or any(self._members[node].disk.under_way for node in nodes):
            self._do_persist([str(node) for node in nodes])
            self._do_deliver([])
        self._quiet = False
        for node, member in self._members.items():
            if entries := member.applied[before[node] :]:
                self._say(f"{node}: applies {_entries(entries)}")

    def _do_crash(self, words: list[str]) -> None:
        """`crash NODE [WRITES]`: that many of those under way still reach the disk."""
        self._members[int(words[0])].crash(written=int(words[1]) if len(words) > 1 else 0)

    def _do_restart(self, words: list[str]) -> None:
        member = self._members[int(words[0])]
        member.restart()
        self._checkers.forget(member)

    def _do_wipe(self, words: list[str]) -> None:
        """It comes back with an empty disk."""
        node = int(words[0])
        self._lives[node] = self._lives.get(node, 1) + 1
        self._add(peer(node, self._lives[node]), NOBODY)


def _role(member: Member) -> str:
    match member.core.role:
        case Leadership():
            return "leader"
        case Candidacy(pre=pre):
            return "pre-candidate" if pre else "candidate"
        case _:
            return "follower"


def _membership(membership: Membership) -> str:
    voters = " ".join(str(p.node) for p in sorted(membership.voters))
    learners = " ".join(str(p.node) for p in sorted(membership.learners))
    return f"voters {voters or 'none'}" + (f", learners {learners}" if learners else "")


def _entries(entries: list[Entry] | tuple[Entry, ...]) -> str:
    return " ".join(_entry(entry) for entry in entries) or "nothing"


def _entry(entry: Entry) -> str:
    """Index, term, and what it says."""
    if entry.kind is EntryKind.MEMBERSHIP:
        return f"{entry.index}/{entry.term}({_membership(Membership.decoded(entry.data))})"
    return f"{entry.index}/{entry.term}" + (f"({entry.data.decode()})" if entry.data else "")


def _told(ready: Ready) -> list[str]:
    lines = []
    if ready.refusal is not None:
        lines.append(f"refused: {ready.refusal.value}")
    saved = []
    if ready.hard_state is not None:
        vote = ready.hard_state.vote
        saved.append(f"term {ready.hard_state.term}" + (f" vote {vote}" if vote >= 0 else ""))
    if ready.chunk is not None:
        end = ", the last" if ready.chunk.last else ""
        saved.append(f"snapshot {ready.chunk.mark.index}/{ready.chunk.mark.term} from byte {ready.chunk.offset}{end}")
    if ready.entries:
        saved.append(_entries(ready.entries))
    if saved:
        lines.append("writes " + ", ".join(saved))
    if ready.committed:
        lines.append(f"applies {_entries(ready.committed)}")
    lines += [f"read {read.context} may be answered at {read.index}" for read in ready.reads]
    return lines


def _message(message: Message) -> str:
    match message:
        case VoteRequest():
            kind = " (pre)" if message.pre else " (transfer)" if message.transfer else ""
            what = f"vote?{kind} last {message.last_index}/{message.last_term}"
        case VoteAnswer():
            what = ("vote" if message.granted else "no vote") + (" (pre)" if message.pre else "")
        case AppendRequest():
            previous = f"{message.previous_index}/{message.previous_term}"
            what = f"append after {previous}: {_entries(message.entries)}, commit {message.commit_index}"
        case AppendAnswer():
            what = f"has {message.match_index}"
        case AppendRefusal():
            what = f"lacks {message.previous_index}, try {message.hint_index}/{message.hint_term}"
        case Heartbeat():
            what = f"heartbeat {message.round}, commit {message.commit_index}"
        case HeartbeatAnswer():
            what = f"heartbeat {message.round} heard"
        case SnapshotChunk():
            end = ", the last" if message.last else ""
            what = f"snapshot {message.mark.index}/{message.mark.term} from byte {message.offset}{end}"
        case SnapshotAnswer():
            what = f"snapshot {message.index}: next is byte {message.next_offset}"
        case _:
            what = type(message).__name__
    return f"{message.source.node}>{message.target.node} term {message.term}: {what}"
