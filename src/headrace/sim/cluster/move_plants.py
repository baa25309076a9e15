"""Bugs to plant in hand-overs and in durable history, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from headrace.base.ids import LeaderEpoch, TopicId, TopicPartition
from headrace.base.ports import Buffer, Objects
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.durable import exporter
from headrace.broker.durable.exporter import Exporter
from headrace.broker.moves.handing_over import UNKNOWN, Owner
from headrace.broker.partitions import assigned
from headrace.broker.partitions.intake.gate import Gate
from headrace.broker.partitions.logs.durable_wins import wins
from headrace.broker.partitions.logs.opening import Begun, Opener, Wanted
from headrace.broker.partitions.partition import Partition
from headrace.controller import moves
from headrace.controller.asks.moves import (
    FailTarget,
    FinishMove,
    GiveUpMove,
    MovePartitions,
    ProveMove,
    ReassignPartitions,
    SealMove,
)
from headrace.controller.decision import Decision, Refusal, decided
from headrace.controller.moves import Seal, SealedTail
from headrace.metadata import replay
from headrace.metadata.events import MetadataEvent, MoveCancelled, SegmentPublished
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.metadata.values import PartitionImage
from headrace.storage.engine.identity import LogIdentity
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.log.checkpoints import encode_stamp, write_file
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.names import STAMP
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.wire.errors import ErrorCode

PATIENCE_MS: Final = 500
OF_MOVES: Final = (ReassignPartitions, MovePartitions, ProveMove, SealMove, FinishMove, FailTarget, GiveUpMove)


@contextmanager
def seal_without_epoch_check() -> Iterator[None]:
    """The owner of a partition may seal it, in whichever leader epoch that was proposed."""
    unsealable = moves._unsealable

    def lenient(image: MetadataImage, key: TopicPartition, known: PartitionImage, seal: Seal) -> Refusal | None:
        return unsealable(image, key, known, replace(seal, state=replace(seal.state, leader_epoch=known.leader_epoch)))

    def published(image: MetadataImage, seal: Seal) -> Decision[Refusal | None]:
        catalog = image.durable(TopicPartition(seal.topic_id, seal.partition))
        if seal.tail is None or (catalog.last is not None and catalog.last.descriptor == seal.tail.descriptor):
            return decided([])
        descriptor, previous = seal.tail.descriptor, seal.tail.previous_hash
        if problem := catalog.refusal(descriptor, previous):
            return decided(Refusal(ErrorCode.INVALID_REQUEST, problem))
        event = SegmentPublished(
            topic_id=seal.topic_id, partition=seal.partition, descriptor=descriptor, previous_hash=previous
        )
        return decided([event])

    with patch.object(moves, "_unsealable", lenient), patch.object(moves, "_published", published):
        yield


class _NotYet:
    """A store that delays what is put into it."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, bytes]] = []

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        self.kept.append((key, bytes(data)))
        return True


@contextmanager
def event_before_object() -> Iterator[None]:
    """A segment is published before it is stored, except the last of an owner, which its seal publishes."""
    due: dict[str, tuple[Objects, bytes]] = {}
    publish, export_tail = Exporter.publish, Owner._export_tail

    def described(objects: Objects, source: ExportSource, batches: Buffer | Iterable[Buffer]) -> SegmentDescriptor:
        later: Any = _NotYet()
        descriptor = export_segment(later, source, batches)
        [(key, body)] = later.kept
        due[key] = objects, body
        return descriptor

    async def stored(descriptor: SegmentDescriptor) -> None:
        objects, body = due.pop(descriptor.key)
        await asyncio.get_running_loop().run_in_executor(None, objects.put, descriptor.key, body)

    async def published(self: Exporter, partition: Partition, descriptor: SegmentDescriptor, *rest: Any) -> None:
        await publish(self, partition, descriptor, *rest)
        await stored(descriptor)

    async def tail_of(self: Owner, partition: Partition) -> SealedTail | None:
        if (tail := await export_tail(self, partition)) is not None:
            await stored(tail.descriptor)
        return tail

    with (
        patch.object(exporter, "export_segment", described),
        patch.object(Exporter, "publish", published),
        patch.object(Owner, "_export_tail", tail_of),
    ):
        yield


@contextmanager
def owner_resumes_after_an_unknown_seal() -> Iterator[None]:
    """An owner that does not learn the outcome of its seal assumes that it was refused, and continues."""
    propose = Owner._propose

    async def impatient(self: Owner, partition: Partition, seal: Seal, changed: asyncio.Event) -> str | None:
        refusal = await self._control.submit(SealMove(seal=seal), wait_ms=PATIENCE_MS)
        if not self._is_open(partition.topic_partition, seal.state.leader_epoch):
            return None
        if refusal is None or refusal.code not in UNKNOWN:
            return await propose(self, partition, seal, changed)
        partition.gate.is_proposed = False
        partition.go_on_writing()
        return refusal.message

    with patch.object(Owner, "_propose", impatient):
        yield


@contextmanager
def cancel_without_an_epoch() -> Iterator[None]:
    """A cancelled move is over, and its owner continues in the same leader epoch."""
    cancelled, moved, lead, is_open = moves.cancelled, replay._moved, Partition.lead, Owner._is_open

    def same_epoch(topic_id: TopicId, known: PartitionImage) -> tuple[MetadataEvent, PartitionImage]:
        event, after = cancelled(topic_id, known)
        assert isinstance(event, MoveCancelled)
        return replace(event, leader_epoch=known.leader_epoch), replace(after, leader_epoch=known.leader_epoch)

    def replayed(known: PartitionImage, event: replay.MoveEvent) -> PartitionImage | None:
        if isinstance(event, MoveCancelled) and event.leader_epoch == known.leader_epoch and not known.is_sealed:
            return None if known.move is None else replace(known, move=None)
        return moved(known, event)

    def leads_on(self: Partition, partition: PartitionImage) -> None:
        lead(self, partition)
        if partition.move is None and self.gate.is_proposed and not self.has_stepped_down:
            self.gate.is_proposed = False
            self.go_on_writing()

    def shows_it(self: Owner, key: TopicPartition, epoch: LeaderEpoch) -> bool:
        known = self._image().partition(key)
        return is_open(self, key, epoch) and known is not None and known.move is not None

    with (
        patch("headrace.controller.reassignments.cancelled", same_epoch),
        patch.object(replay, "_moved", replayed),
        patch.object(Partition, "lead", leads_on),
        patch.object(Owner, "_is_open", shows_it),
    ):
        yield


@contextmanager
def stale_local_log_wins() -> Iterator[None]:
    """A target that had the partition before continues with the log on its disk. It ignores the log's stamp, and that
    durable history goes on above its end."""
    begin = Opener._begin_at
    restamped: set[LogIdentity] = set()
    """Identities of logs with a new stamp. Each names the disk and the assignment."""

    def at_home(self: Opener, wanted: Wanted) -> Begun:
        engine, identity = self._engine, wanted.identity
        assert isinstance(engine, LocalLogEngine)
        found = engine.stamped(identity)
        if found is None or found == identity:
            return begin(self, wanted)
        directory = engine.root / f"{identity.topic_name}-{identity.partition}"
        stamp = engine._stamp(directory)
        assert stamp is not None
        write_file(engine._disk, directory / STAMP, encode_stamp(replace(stamp, identity=identity)))
        engine._disk.sync_directory(directory)
        restamped.add(identity)
        return Begun(engine.begin_open(identity, wanted.config), None)

    def believed(catalog: PartitionCatalog | None, partition_log: PartitionLog) -> bool:
        return partition_log.identity not in restamped and wins(catalog, partition_log)

    with patch.object(Opener, "_begin_at", at_home), patch.object(assigned, "wins", believed):
        yield


@contextmanager
def new_owner_appends_before_the_move_is_finished() -> Iterator[None]:
    """A leader accepts records at once."""
    with patch.object(Gate, "is_open", property(lambda self: not self.is_stopped)):
        yield


@contextmanager
def two_decisions_on_one_image() -> Iterator[None]:
    """Requests about moves are decided on the committed image alone, so two may be decided before either is
    committed."""
    submit = MetadataDriver.submit

    async def blind(self: MetadataDriver, decide: Any) -> Any:
        if isinstance(decide, partial) and decide.args and isinstance(decide.args[0], OF_MOVES):
            return await submit(self, lambda pending: decide(self.image))
        return await submit(self, decide)

    with patch.object(MetadataDriver, "submit", blind):
        yield


MOVE_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "seal-without-epoch-check": seal_without_epoch_check,
    "event-before-object": event_before_object,
    "owner-resumes-after-an-unknown-seal": owner_resumes_after_an_unknown_seal,
    "cancel-without-an-epoch": cancel_without_an_epoch,
    "stale-local-log-wins": stale_local_log_wins,
    "new-owner-appends-before-the-move-is-finished": new_owner_appends_before_the_move_is_finished,
    "two-decisions-on-one-image": two_decisions_on_one_image,
}
"""Found by the moves' part of a seed (`moves.run.run_moves`)."""
