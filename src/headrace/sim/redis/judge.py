"""Invariants of brokers on a Redis, judged by its writes, by images, and by answers to clients.

The judge sees each write of the simulated Redis as it is executed. It never asks a broker's own state.

Promises:
- Every image that a broker shows is what the commit log in Redis gives at its index. Its index never falls, and no
  partition's leader epoch does, whatever Redis loses.
- An entry of the commit log is committed by the present holder of the lease.
- The first entry behind a failover or a restart of Redis is a doubt. An earlier holder may not know what is lost.
- Batches follow one another without gaps. Each has the leader epoch that Redis notes for its offset.
- A batch that is acknowledged at acks=all is in the synced file. Where `min.insync.replicas` asks for two copies, a
  replica has it, too.
- Where a failover lost records that anybody was shown, their leader epoch is over, and never used again.
- As long as Redis has lost nothing, no leader takes its own records there for another's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from headrace.metadata.codec import decode_events
from headrace.metadata.events import ChangesDoubted, MetadataEvent
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import difference
from headrace.sim.cluster.records.history import Acked, RecordsHistory
from headrace.sim.cluster.records.judge import Glimpse, RecordsJudge
from headrace.sim.cluster.records.media import VERBATIM
from headrace.sim.history import PartitionKey
from headrace.sim.process import Process
from headrace.sim.redis.server import Server
from headrace.sim.redis.service import Service
from headrace.sim.redis.timelines import ServerModel, Timeline, Write
from headrace.storage.engine.faults import Diverged
from headrace.storage.redis.flushing import Ticket
from headrace.storage.redis.server_side.functions import Status
from headrace.storage.redis.server_side.keys import Keys
from headrace.storage.redis.server_side.model_keys import Stream
from headrace.wire.batches import decode_records, parse_header

KEYS: Final = Keys()
METADATA: Final = KEYS.metadata.encode()
HEAD: Final = KEYS.head.encode()
LEASE: Final = KEYS.lease.encode()


class Stored(NamedTuple):
    """A batch that was written to a Stream: the write that did it, counted from 1."""

    key: PartitionKey
    timeline: Timeline
    position: int
    base: int
    end: int
    epoch: int
    data: bytes

    @property
    def is_lost(self) -> bool:
        """Whether a later master began without it."""
        return self.timeline.kept is not None and self.position > self.timeline.kept


@contextmanager
def other_records_seen(judge: RedisJudge) -> Iterator[None]:
    """While it lasts, tell the judge wherever a leader takes records in Redis for another's."""
    other_records = Ticket._other_records

    def told(self: Ticket, end: int) -> Diverged:
        found = other_records(self, end)
        judge.on_other_records(str(found))
        return found

    with patch.object(Ticket, "_other_records", told):
        yield


class RedisJudge(RecordsJudge):
    """The judge, as the module says. `copies`: the topic's `min.insync.replicas`, which is set before any record."""

    def __init__(
        self,
        accuse: Callable[[str, str], object],
        tell: Callable[[str], object],
        hosts: Sequence[Host],
        service: Service,
    ) -> None:
        super().__init__(accuse, tell, hosts)
        self.copies = 1
        self._service = service
        service.on_executed, service.on_replaced = self._on_executed, self._on_replaced
        self._ends: dict[tuple[int, bytes], int] = {}
        """By timeline and Stream: the last id that the judge has seen."""
        self.stored: dict[PartitionKey, list[Stored]] = {}
        self._by_timeline: dict[int, dict[int, MetadataImage]] = {1: {0: EMPTY_IMAGE}}
        """By timeline and index: the image that the commit log gives."""
        self._last_entries: dict[int, int] = {}
        """By timeline: the write that made the last entry of the commit log."""
        self._failed_over: set[int] = set()
        """Timelines whose master was replaced by its replica."""
        self._undoubted: set[int] = set()
        """Timelines that go on behind entries of the commit log, and have no entry of their own yet."""
        self._failovers = 0
        self.entries = self.losses = 0
        self.on_change: Callable[[Sequence[MetadataEvent]], object] | None = None
        """Called when an entry was added to the commit log, so that a fault can use the moment."""

    def on_other_records(self, what: str) -> None:
        """A leader gives its log up, as Redis has records that it has not written."""
        if not self._service.restarts and not self._service.failovers:
            self._accuse("divergence", f"{what} Redis has lost nothing, and others' epochs are fenced.")

    # the server

    def _on_executed(self, timeline: Timeline, model: ServerModel, write: Write, reply: Any) -> None:
        command = write.command
        if command[0] != b"FCALL" or reply[0] != Status.DONE:
            return
        count = int(command[2])
        keys, args = command[3 : 3 + count], command[3 + count :]
        if command[1].endswith(b"_append"):
            before = self._ends.get((timeline.number, keys[0]), 0)
            for number, fields in self._new(timeline, model, keys[0]):
                self._on_batch(timeline, model, keys, args, before, number, fields[1])
                before = number
        elif command[1].endswith((b"_commit", b"_doubt")):
            for number, fields in self._new(timeline, model, METADATA):
                self._on_entry(timeline, model, args[0], number, fields)

    def _new(self, timeline: Timeline, model: ServerModel, key: bytes) -> list[tuple[int, tuple[bytes, ...]]]:
        """Entries of a Stream that this write has made."""
        stream = model.keys.get(key)
        if not isinstance(stream, Stream):
            return []
        found = stream.above(self._ends.get((timeline.number, key), 0))
        self._ends[timeline.number, key] = stream.last
        return found

    def _on_batch(
        self,
        timeline: Timeline,
        model: ServerModel,
        keys: Sequence[bytes],
        args: Sequence[bytes],
        before: int,
        end: int,
        data: bytes,
    ) -> None:
        header = parse_header(data)
        key = PartitionKey(uuid.UUID(args[0].decode()), int(keys[0].rpartition(b":")[2]))
        if header.base_offset != before or header.next_offset != end:
            text = f"{_name(key)} ends at {before}, and gets a batch from {header.base_offset} to {end}"
            self._accuse("gap", text)
        noted = self._epoch_at(model, keys[1].replace(b":state", b":epochs"), header.base_offset)
        if header.leader_epoch != noted:
            text = f"{_name(key)} has a batch of epoch {header.leader_epoch} at {header.base_offset}, in epoch {noted}"
            self._accuse("epochs-differ", text)
        stored = Stored(key, timeline, timeline.end, header.base_offset, end, header.leader_epoch, data)
        self.stored.setdefault(key, []).append(stored)

    @staticmethod
    def _epoch_at(model: ServerModel, key: bytes, offset: int) -> int:
        begun = model.keys.get(key, {})
        return max((int(name) for name, at in begun.items() if at <= offset), default=-1)

    def _on_entry(
        self, timeline: Timeline, model: ServerModel, holder: bytes, index: int, fields: tuple[bytes, ...]
    ) -> None:
        _, token, _, _, _, events = fields
        lease = model.keys[LEASE]
        if (lease[b"token"], lease[b"holder"]) != (token, holder):
            text = f"entry {index} of lease {token.decode()}, while {lease[b'token'].decode()} is held"
            self._accuse("stale-controller", text)
        images = self._by_timeline[timeline.number]
        changes, last = decode_events(events), max(images)
        if index <= last or (index > last + 1 and not any(isinstance(each, ChangesDoubted) for each in changes)):
            self._accuse("entries-skip", f"entry {index} comes behind {last}")
            return
        self._check_doubted(timeline, index, changes)
        self.entries += 1
        self._last_entries[timeline.number] = timeline.end
        images[index] = images[last].replay(changes, index=index)
        self.losses += timeline.kept is not None  # the old master serves on: its replica has taken its place
        if self.on_change is not None:
            self.on_change(changes)

    def _check_doubted(self, timeline: Timeline, index: int, changes: Sequence[MetadataEvent]) -> None:
        """Check that a controller goes on in another history of Redis with a doubt alone."""
        if timeline.number in self._undoubted and not any(isinstance(each, ChangesDoubted) for each in changes):
            self._accuse("not-doubted", f"entry {index} is the first in another history of Redis, and is no doubt")
        self._undoubted.discard(timeline.number)

    def _on_replaced(self, old: Server, new: Server) -> None:
        """Another server is the master."""
        for key, stream in new.model.keys.items():
            if isinstance(stream, Stream):
                self._ends[new.timeline.number, key] = stream.last
        if self._service.failovers > self._failovers:
            self._failovers = self._service.failovers
            self._failed_over.add(old.timeline.number)
        head = int(new.model.keys.get(HEAD, {}).get(b"index", 0))
        if head:
            self._undoubted.add(new.timeline.number)
        images = self._by_timeline[old.timeline.number]
        self._by_timeline[new.timeline.number] = {index: image for index, image in images.items() if index <= head}
        if head < max(images):
            self.losses += 1
            self._tell(f"Redis has the commit log to {head}, and had {max(images)}")
            self._begin_again(images[head])

    def _begin_again(self, image: MetadataImage) -> None:
        """The image that counts is this one again."""
        self.newest = image
        for topic in image.topics.values():
            for state in topic.partitions:
                self._states[PartitionKey(topic.id, state.index)] = {state.partition_epoch: state}

    def loses_changes(self, kept: int) -> bool:
        """Whether a master that begins with so many writes lacks entries of the commit log."""
        return kept < self._last_entries.get(self._service.server.timeline.number, 0)

    # images

    def _check_shown(self, process: Process, before: MetadataImage | None, image: MetadataImage) -> None:
        where = self._where(image)
        if not where:
            known = next((each[image.index] for each in self._by_timeline.values() if image.index in each), None)
            text = "which the commit log does not reach" if known is None else difference(known, image)
            self._accuse("images-differ", f"{process.name} at index {image.index} shows {text}")
        if before is not None and before.index > image.index:
            self._accuse("image-went-back", f"{process.name} shows index {image.index} after {before.index}")
        for topic in image.topics.values() if before is not None else ():
            was = before.topics.get(topic.id) if before is not None else None
            for earlier, state in zip(was.partitions if was is not None else (), topic.partitions, strict=False):
                if state.leader_epoch < earlier.leader_epoch:
                    text = f"{process.name} shows epoch {state.leader_epoch} after {earlier.leader_epoch}"
                    self._accuse("epoch-went-back", f"{text} of {_name(PartitionKey(topic.id, state.index))}")

    def _where(self, image: MetadataImage) -> set[int]:
        """The timelines that give it."""
        return {number for number, images in self._by_timeline.items() if images.get(image.index) == image}

    def apart(self) -> str | None:
        """A sentence about brokers that do not show the newest image, when all should."""
        newest = max(self._by_timeline[self._service.server.timeline.number])
        shown = {process.name: image.index for process, image in self._of_members.items() if process.alive}
        behind = {name: index for name, index in shown.items() if index != newest}
        return f"the commit log ends at {newest}, and some show {behind}" if behind else None

    def _check_in_sync(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        """Nothing: the copies are Redis's."""

    # answers

    def on_acknowledged(self, seen: Glimpse, data: bytes, base: int, count: int) -> None:
        """A batch was acknowledged at acks=all."""
        if base < 0:
            return
        key, written = seen.partition, data[VERBATIM:]
        found = [each for each in self.stored.get(key, ()) if each.base == base and each.data.endswith(written)]
        if not any(map(self._counts, found)):
            text = f"offset {base} of {_name(key)} is acknowledged by {seen.node}, and {self._in_words(found)}"
            self._accuse("acknowledged-too-early", text)
        self._promise(key, base + count)

    def _counts(self, stored: Stored) -> bool:
        """Whether it is durable, and on as many copies as it has to be. A failover may lose what has one copy."""
        timeline, server = stored.timeline, self._service.server
        if timeline is not server.timeline:
            return not stored.is_lost or (self.copies < 2 and timeline.number in self._failed_over)
        is_copied = self.copies < 2 or (server.replica is not None and stored.position <= server.replica.acknowledged)
        return stored.position <= server.synced and is_copied

    def _in_words(self, found: Sequence[Stored]) -> str:
        if not found:
            return "Redis never had it"
        server = self._service.server
        copied = None if server.replica is None else server.replica.acknowledged
        writes = ", ".join(f"{each.position} of timeline {each.timeline.number}" for each in found)
        return f"is write {writes}; now in {server.timeline.number}: synced {server.synced}, copied {copied}"

    def promised_under(self, key: PartitionKey, epoch: int) -> int:
        """Nothing where a failover may lose records that have one copy."""
        return 0 if self._failed_over else super().promised_under(key, epoch)

    # losses

    def lost(self, key: PartitionKey) -> Iterator[Stored]:
        """Batches of a partition that a later master began without, and that their leader has not written again."""
        log = self.stored.get(key, ())
        there = {(each.base, each.data) for each in log if not each.is_lost}
        return (each for each in log if each.is_lost and (each.base, each.data) not in there)

    def excused(self, history: RecordsHistory) -> RecordsHistory:
        """The history without what a fault of Redis may lose. That is all of acks=1, and what had one copy when the
        replica took over. All else was promised."""
        gone: dict[tuple[PartitionKey, int, bytes | None], bool] = {}
        for key in self.stored:
            for each in self.lost(key):
                for record in decode_records(each.data):
                    gone[key, record.offset, record.value] = each.timeline.number in self._failed_over
            for each in self.stored[key]:  # a client may have sent the same again, in a later epoch
                for record in decode_records(each.data) if not each.is_lost else ():
                    gone.pop((key, record.offset, record.value), None)
        acked = {
            value: found._replace(on_all=True)
            for value, found in history.acked.items()
            if not self._is_excused_ack(gone.get((history.sent[value].partition, found.offset, value)), found)
        }
        polls = [
            poll._replace(
                records=[
                    record
                    for record in poll.records
                    if not gone.get((poll.partition, record.offset, record.value), False)
                ]
            )
            for poll in history.polls
        ]
        return RecordsHistory(sent=history.sent, acked=acked, polls=polls)

    def _is_excused_ack(self, by_failover: bool | None, found: Acked) -> bool:
        if by_failover is None:
            return found.offset < 0 and not found.on_all  # where it lay is not known
        return not found.on_all or (by_failover and self.copies < 2)

    def check_told(self, history: RecordsHistory) -> None:
        """Check that a leader epoch is over, and not used again, of which anybody was shown records that are lost."""
        shown = {(poll.partition, record.offset, record.value) for poll in history.polls for record in poll.records}
        for value, acked in history.acked.items():
            if acked.on_all:
                shown.add((history.sent[value].partition, acked.offset, value))
        for key in self.stored:
            for each in self.lost(key):
                if any((key, record.offset, record.value) in shown for record in decode_records(each.data)):
                    self._check_epoch_is_over(key, each)

    def _check_epoch_is_over(self, key: PartitionKey, lost: Stored) -> None:
        state = self.state(key)
        where = f"offset {lost.base} of {_name(key)} in epoch {lost.epoch} is lost, and was shown"
        if state is None or state.leader_epoch <= lost.epoch:
            self._accuse("loss-untold", f"{where}; the epoch is {state and state.leader_epoch} now")
        for each in self.stored[key]:
            if not each.is_lost and each.epoch == lost.epoch and each.end > lost.base and each.data != lost.data:
                self._accuse("epoch-again", f"{where}; the same epoch has other records at {each.base}")
                return


def _name(key: PartitionKey) -> str:
    return f"partition {key.number}"
