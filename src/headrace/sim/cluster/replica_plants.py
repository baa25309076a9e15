"""Bugs to plant in the copying of partitions, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

from headrace.base.ids import BrokerId, DirectoryId, Offset, TopicPartition
from headrace.broker.kit.parking import CommitParking
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.roles import Roles
from headrace.broker.replication import followers
from headrace.broker.replication.copying import Source
from headrace.controller import brokers, elections, growth, renewals
from headrace.metadata.events import IsrChanged, LeaderChanged, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.net.peer.peerframes import Envelope
from headrace.net.peer.peers import Peers
from headrace.replica.follower import Position
from headrace.replica.leader import AdvanceHighWatermark, Effects, Leader
from headrace.storage.engine.logs import PartitionLog
from headrace.storage.log.journal.journal import Journal
from headrace.storage.log.journal.rounds import LogKey
from headrace.wire.errors import ErrorCode
from headrace.wire.replica_fetch import Flushed


@contextmanager
def acknowledge_before_fsync() -> Iterator[None]:
    """The leader counts its own appended records as flushed."""
    after_write = Partition._after_write

    def hasty(self: Partition) -> None:
        after_write(self)
        self._on_durable(self.log.log_end_offset, self._appended_bytes)

    with patch.object(Partition, "_after_write", hasty):
        yield


@contextmanager
def high_watermark_over_non_isr() -> Iterator[None]:
    """Records on most replicas are committed, whether those are in sync or not."""
    with_ends = Leader._with_ends

    def of_most(self: Leader, ends: Mapping[BrokerId, Offset]) -> tuple[Leader, Effects]:
        leader, effects = with_ends(self, ends)
        known = {**leader.flushed_ends, leader.node: ends[leader.node]}
        reached = sorted((known.get(each, Offset(0)) for each in leader.replicas), reverse=True)
        middle = reached[len(reached) // 2]
        if middle <= leader.high_watermark:
            return leader, effects
        return leader._replace(high_watermark=middle), (AdvanceHighWatermark(middle),)

    with patch.object(Leader, "_with_ends", of_most):
        yield


@contextmanager
def fetch_offset_counted() -> Iterator[None]:
    """A follower reports how far it has copied, and that counts as flushed."""

    def position(self: FollowerPartition) -> Position:
        end = self.log.log_end_offset
        return Position(self.leader_epoch, end, self.log.epoch_at(Offset(end - 1)), end, self.readable_from)

    def reported(self: Source, key: TopicPartition) -> Flushed:
        copy = self._copies[key]
        return Flushed(self._generations[key], copy.log.log_end_offset, copy.readable_from)

    with (
        patch.object(FollowerPartition, "position", property(position)),
        patch.object(FollowerPartition, "is_flushed", property(lambda self: True)),
        patch.object(Source, "_told_flushed", reported),
    ):
        yield


@contextmanager
def no_truncation_on_a_new_epoch() -> Iterator[None]:
    """A follower continues from the end of its log, whatever is in it."""

    def diverges(*_: object) -> bool:
        return False

    with patch.object(followers, "diverges", diverges):
        yield


@contextmanager
def isr_used_before_commit() -> Iterator[None]:
    """The leader uses the ISR that it has proposed."""

    def propose(self: Leader, isr: tuple[BrokerId, ...]) -> tuple[Leader, Effects]:
        leader = self._replace(proposed=isr)
        advanced, effects = leader._with_ends(leader._ends_of(isr))
        return advanced, (*effects, advanced.proposal)

    def in_sync(self: Leader) -> int:
        return len(self.proposed or self.isr)

    with patch.object(Leader, "_propose", propose), patch.object(Leader, "in_sync", property(in_sync)):
        yield


@contextmanager
def join_at_a_stale_high_watermark() -> Iterator[None]:
    """A replica may join the ISR once it has reached the high watermark, even if that is still the one of an older
    epoch."""

    def may_join(self: Leader, replica: BrokerId) -> bool:
        known = self.followers.get(replica)
        return known is not None and known.may_join and known.flushed_end >= self.high_watermark

    with patch.object(Leader, "_may_join", may_join):
        yield


@contextmanager
def no_epoch_for_a_new_incarnation() -> Iterator[None]:
    """A returning broker leads its partitions as if it had never been away."""
    anew = elections.started_anew

    def same_epoch(
        image: MetadataImage, broker_id: BrokerId, directory: DirectoryId, *, live: bool
    ) -> Iterator[MetadataEvent]:
        for event in anew(image, broker_id, directory, live=live):
            assert isinstance(event, LeaderChanged | IsrChanged)
            known = image.partition(TopicPartition(event.topic_id, event.partition))
            if known is None or known.leader != broker_id:
                yield event

    with patch.object(brokers, "started_anew", same_epoch):
        yield


@contextmanager
def stale_leader_serves_reads() -> Iterator[None]:
    """A former leader serves consumers until its log has its new role."""

    def check_epoch(self: Partition, believed: int) -> ErrorCode:
        if believed in (-1, self.leader_epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if believed < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    with (
        patch.object(Partition, "availability", property(lambda self: ErrorCode.NONE)),
        patch.object(Partition, "check_epoch", check_epoch),
    ):
        yield


@contextmanager
def wiped_disk_stays_in_the_isr() -> Iterator[None]:
    """A broker that is away stays in sync, and one that returns is in sync, with any directory."""

    def stays(partition: PartitionImage, broker_id: BrokerId) -> tuple[BrokerId, ...]:
        return partition.isr

    with patch.object(elections, "_without", stays):
        yield


@contextmanager
def parked_request_survives_its_epoch() -> Iterator[None]:
    """Requests that wait for a commit keep waiting in the next epoch, and through other roles of their log."""
    parked: WeakKeyDictionary[PartitionLog, CommitParking] = WeakKeyDictionary()
    init, lead, end = Partition.__init__, Partition.lead, Partition.end

    def taken_over(self: Partition, **options: Any) -> None:
        init(self, **options)
        self._commits = parked.setdefault(self.log, self._commits)

    def patient(act: Callable[..., None]) -> Callable[..., None]:
        def acts(self: Partition, *args: Any) -> None:
            kept, self._commits = self._commits, CommitParking()
            act(self, *args)
            self._commits = kept

        return acts

    with ExitStack() as stack:
        for name, act in (("__init__", taken_over), ("lead", patient(lead)), ("end", patient(end))):
            stack.enter_context(patch.object(Partition, name, act))
        yield


@contextmanager
def follower_shows_all_it_has() -> Iterator[None]:
    """A follower gives consumers uncommitted records."""

    def everything(self: FollowerPartition) -> Offset:
        return self.log.log_end_offset

    with patch.object(FollowerPartition, "visible_end", property(everything)):
        yield


@contextmanager
def journal_forgets_lineages() -> Iterator[None]:
    """A copy that returns begins in the first lineage, whatever the journal still has of the former one."""

    def lineage_above(self: Journal, key: LogKey, lineage: int = -1) -> int:
        return lineage + 1

    with patch.object(Journal, "lineage_above", lineage_above):
        yield


REPLICA_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "acknowledge-before-fsync": acknowledge_before_fsync,
    "high-watermark-over-non-isr": high_watermark_over_non_isr,
    "fetch-offset-counted": fetch_offset_counted,
    "no-truncation-on-a-new-epoch": no_truncation_on_a_new_epoch,
    "isr-used-before-commit": isr_used_before_commit,
    "join-at-a-stale-high-watermark": join_at_a_stale_high_watermark,
    "no-epoch-for-a-new-incarnation": no_epoch_for_a_new_incarnation,
    "stale-leader-serves-reads": stale_leader_serves_reads,
    "wiped-disk-stays-in-the-isr": wiped_disk_stays_in_the_isr,
    "parked-request-survives-its-epoch": parked_request_survives_its_epoch,
    "follower-shows-all-it-has": follower_shows_all_it_has,
    "journal-forgets-lineages": journal_forgets_lineages,
}
"""Found by the records' part of a seed (`records.run.run_records`)."""


@contextmanager
def damaged_copy_dropped_while_counted() -> Iterator[None]:
    """A damaged copy is dropped at once, and leaves the ISR only when the leader misses it."""
    with patch.object(FollowerPartition, "may_be_dropped", property(lambda self: True)):
        yield


@contextmanager
def damaged_copy_dropped_in_an_epoch_it_spoke_in() -> Iterator[None]:
    """A replica outside the ISR may drop its data, whatever it has reported to the leader: it may be about to join."""

    def may_be_dropped(self: FollowerPartition) -> bool:
        return not self.is_in_sync

    def without(topic: TopicImage, known: PartitionImage, isr: tuple[BrokerId, ...], leader: BrokerId) -> MetadataEvent:
        event = leaves(topic, known, isr, leader)
        if leader != known.leader:
            return event
        return IsrChanged(
            topic_id=event.topic_id,
            partition=event.partition,
            leader_epoch=known.leader_epoch,
            partition_epoch=event.partition_epoch,
            isr=isr,
        )

    def follow_on(self: Roles, copy: FollowerPartition, image: PartitionImage) -> None:
        follows(self, copy, image)
        if self._assigned.node not in image.isr:
            self._feed(copy)

    leaves, follows = renewals._next_epoch, Roles._follow_on
    with (
        patch.object(FollowerPartition, "may_be_dropped", property(may_be_dropped)),
        patch.object(renewals, "_next_epoch", without),
        patch.object(Roles, "_follow_on", follow_on),
    ):
        yield


ROT_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "damaged-copy-dropped-while-counted": damaged_copy_dropped_while_counted,
    "damaged-copy-dropped-in-an-epoch-it-spoke-in": damaged_copy_dropped_in_an_epoch_it_spoke_in,
}
"""Found by a records run on disks that damage their content (`records.run.run_rotten`)."""


@contextmanager
def new_replica_begins_in_sync() -> Iterator[None]:
    """A replica that replaces a lost one counts as in sync from the first moment."""
    grown = growth._grown

    def trusted(partition: PartitionImage, replicas: Sequence[BrokerId]) -> PartitionImage:
        return replace(grown(partition, replicas), isr=tuple(replicas), adding=())

    with patch.object(growth, "_grown", trusted):
        yield


REMOVAL_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "new-replica-begins-in-sync": new_replica_begins_in_sync,
}
"""Found by a records run in which brokers are removed (`records.removing.run_removals`)."""


@contextmanager
def rejoins_what_is_over() -> Iterator[None]:
    """A broker that set its metadata aside follows the first broker it hears from, even one of the former lineage."""

    def take(self: Peers, envelope: Envelope) -> None:
        self._lineage = envelope.lineage

    with patch.object(Peers, "_take", take):
        yield


LOST_QUORUM_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "rejoins-what-is-over": rejoins_what_is_over,
}
"""Found by a records run in which the quorum is lost (`records.recovering.run_lost_quorums`)."""
