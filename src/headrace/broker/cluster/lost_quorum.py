"""Lets one broker go on after the quorum was lost: on its disk, while all brokers are stopped.

Promises:
- Nothing is written unless the operator accepts the loss, the named directories hold no majority of the voters, and no
  broker of the cluster answers.
- The cluster goes on from the directory with the longest log, by term, then index. As in an election, a log that was
  committed further wins.
- That broker alone votes in the new lineage; all others come back as learners, the named ones without another command.
- Killed anywhere, a directory holds the old state or the new one.

It never proves that a silent broker is gone: a voter that is only cut off goes on. Sources: etcd's
`--force-new-cluster` and its follow-ups, the fencing of decision 0050. Blocking, but for `probe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import NO_LEADER, BrokerId, Lineage
from headrace.base.limits import QUORUM_PROBE_MS, QUORUM_RECOVERY_EPOCHS, QUORUM_RECOVERY_INDEXES
from headrace.base.ports import Disk, Random
from headrace.broker.home import identity, lineage
from headrace.broker.home.joining import cluster_at
from headrace.controller.lost_quorum import recovered, superseded
from headrace.metadata.image import MetadataImage
from headrace.net.client.errors import AuthenticationError, ClientError, ConnectionLostError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import EntryKind, HardState, SnapshotMark
from headrace.storage.raftlog.metadata_log import events_of, image_of_snapshot, snapshot_lines
from headrace.storage.raftlog.raft_log import open_commit_log, read_commit_log
from headrace.storage.raftlog.recovery import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """One broker's metadata, as found on its disk. Entries that it does not know to be committed count as committed."""

    data: Path
    identity: identity.Identity
    membership: Membership
    term: int
    """The term of the last entry."""
    index: int
    """The index of the last entry."""
    image: MetadataImage
    superseded: str
    """The note of a later recovery without this broker; empty: there is none."""

    @property
    def peer(self) -> Peer:
        return Peer(self.identity.broker_id, self.identity.directory_id)

    @property
    def length(self) -> tuple[int, int]:
        """The measure by which the longest log is chosen."""
        return self.term, self.index


def examine(disk: Disk, data: Path) -> Remains:
    """Read a broker's metadata; nothing is changed. Raises UsageError, CorruptData, StorageFailure."""
    known = identity.read(disk, data)
    born = Membership(frozenset(Peer(voter.broker_id, voter.directory_id) for voter in known.voters))
    if not disk.exists(data / lineage.METADATA):
        raise UsageError(f"{data} holds no metadata: name another broker's directory.")
    found = read_commit_log(disk, data / lineage.METADATA, born=born)
    image = image_of_snapshot(found.snapshot)
    for entry in found.entries:
        image = image.replay(events_of(entry), index=entry.index)
    if not image.cluster_id:
        raise UsageError(f"{data} holds no metadata yet: name another broker's directory.")
    term = found.entries[-1].term if found.entries else found.mark.term
    return Remains(
        data=data,
        identity=known,
        membership=_membership(found),
        term=term,
        index=found.last_index,
        image=image,
        superseded=lineage.superseded_by(disk, data),
    )


def _membership(found: Recovery) -> Membership:
    changes = [entry for entry in found.entries if entry.kind is EntryKind.MEMBERSHIP]
    return Membership.decoded(changes[-1].data) if changes else found.mark.membership


def longest(remains: Sequence[Remains]) -> Remains:
    """Return the broker with the longest log. Raises UsageError where they are not of one cluster and one lineage."""
    best = max(remains, key=lambda one: (one.image.lineage.number, *one.length, -one.identity.broker_id))
    for one in remains:
        if one.identity.cluster_id != best.identity.cluster_id:
            raise UsageError(
                f"{one.data} is of cluster {one.identity.cluster_id}, {best.data} of {best.identity.cluster_id}: name "
                "directories of one cluster."
            )
        if one is not best and one.identity.broker_id == best.identity.broker_id:
            raise UsageError(
                f"{one.data} and {best.data} are both of broker {one.identity.broker_id}: name one of them."
            )
        if one.image.lineage != best.image.lineage:
            raise UsageError(
                f"{one.data} follows another recovery of the quorum than {best.data}: leave it out; its broker is "
                "told, once it is started with --join, how it comes back."
            )
    if best.superseded:
        raise UsageError(
            f"{best.data} is from before a recovery of the quorum that went on without it: name a directory of a "
            f"broker that knows of that one. Where those are all lost for good, too, remove "
            f"{best.data / lineage.FILE_NAME} there and on its like, and start them, or name it again."
        )
    return best


def check_lost(
    best: Remains,
    remains: Sequence[Remains],
    living: Mapping[BrokerId, Address],
    silent: Collection[Address] = (),
) -> None:
    """Raises UsageError where the quorum is not lost, or a broker runs. `living`: the brokers that answer; `silent`:
    addresses that take a connection and do not answer."""
    voters = {peer.node for peer in best.membership.voters}
    here = {one.identity.broker_id for one in remains if one.peer in best.membership.voters}
    there = voters & (here | living.keys())
    if len(there) >= best.membership.quorum:
        names = ", ".join(map(str, sorted(there)))
        raise UsageError(
            f"The quorum is not lost: of its {len(voters)} voters {names} are there, and {best.membership.quorum} are "
            "enough: start them."
        )
    if living:
        who = ", ".join(str(address) for _, address in sorted(living.items()))
        raise UsageError(f"The cluster is not stopped: {who} answers. Stop every broker first.")
    if silent:
        who = ", ".join(map(str, silent))
        raise UsageError(
            f"Somebody listens at {who}, and does not answer: a broker that hangs, or was stopped by SIGSTOP, is not "
            "lost. End that process first. Where brokers want TLS or a login, give --command-config."
        )


class Probed(NamedTuple):
    """The findings at the addresses of the cluster's brokers."""

    living: Mapping[BrokerId, Address]
    """Brokers of the cluster that answer. One at an address of no known broker is under NO_LEADER."""
    silent: Sequence[Address]
    """Addresses that take a connection and do not answer."""


async def probe(best: Remains, others: Sequence[Address] = (), security: ClientSecurity = PLAIN) -> Probed:
    """Probe every address where a broker may be, those of the directories too: one of these may be a copy. `others`:
    further addresses. `security`: how brokers let somebody in; one that lets in nobody counts as silent."""
    known = [
        *((NO_LEADER, *address) for address in others),
        *((voter.broker_id, voter.host, voter.port) for voter in best.identity.voters),
        *((broker.id, at.host, at.port) for broker in best.image.brokers.values() for at in broker.endpoints),
    ]
    asked = sorted({(node, Address(host, port)) for node, host, port in known if host and port})
    answers = await asyncio.gather(*(_lives(address, best.identity.cluster_id, security) for _, address in asked))
    found = list(zip(asked, answers, strict=True))
    silent = {address for (_, address), lives in found if lives is None}
    return Probed({node: address for (node, address), lives in found if lives}, sorted(silent))


async def _lives(address: Address, cluster_id: str, security: ClientSecurity) -> bool | None:
    """Return whether a broker of the cluster answers at the address. None: it takes a connection, and does not
    answer, as a broker does that wants TLS or a login."""
    try:
        async with asyncio.timeout(QUORUM_PROBE_MS / 1000):
            _, writer = await asyncio.open_connection(*address)
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, OSError):
        return False
    try:
        async with asyncio.timeout(QUORUM_PROBE_MS / 1000):
            return await cluster_at(address, timeout_ms=2 * QUORUM_PROBE_MS, security=security) == cluster_id
    except (TimeoutError, ConnectionLostError, AuthenticationError):  # it has just taken a connection
        return None
    except (ClientError, OSError):
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The result."""

    lineage: Lineage
    kept: Path
    """The path of the old metadata."""
    offline: int
    """Partitions without a leader until a lost broker comes back, or the operator accepts more loss."""
    left: Mapping[Path, str]
    """Directories of the others that could not be changed, with the reason. Their brokers are told how they come
    back."""


def go_on(disk: Disk, best: Remains, remains: Sequence[Remains], *, random: Random, now_ms: int) -> Recovered:
    """Let the broker of `best` vote alone, in a lineage of its own; the others of `remains` are to join it. All are
    claimed, and `check_lost` has passed. Raises CorruptData, StorageFailure."""
    begins = Lineage(best.image.lineage.number + 1, str(identity.new_directory_id(random)))
    survivors = {one.identity.broker_id for one in remains}
    index = best.index + QUORUM_RECOVERY_INDEXES
    image = recovered(
        best.image, survivors=survivors, lineage=begins, by=best.identity.broker_id, at_ms=now_ms, index=index
    )
    kept, left = _install(disk, best, image), dict[Path, str]()
    for other in remains:
        if other.data != best.data:
            try:
                lineage.note_superseded(disk, other.data, superseded(begins))
                lineage.rejoin(disk, other.data)
            except (HeadraceError, OSError) as error:  # it is done all the same
                left[other.data] = str(error)
    offline = sum(survivors.isdisjoint(partition.isr) for _, partition in image.all_partitions())
    return Recovered(lineage=begins, kept=kept, offline=offline, left=left)


def _install(disk: Disk, best: Remains, image: MetadataImage) -> Path:
    """Install the new metadata by one rename. The old log keeps second names in another directory."""
    born = Membership(frozenset(Peer(voter.broker_id, voter.directory_id) for voter in best.identity.voters))
    directory = best.data / lineage.METADATA
    log, found = open_commit_log(disk, directory, born=born)
    try:
        kept = lineage.unused(disk, best.data, f"{lineage.METADATA}.lost")
        disk.make_directory(kept)
        for name in disk.list_directory(directory):
            disk.link(directory / name, kept / name)
        disk.sync_directory(kept)
        disk.sync_directory(best.data)
        term = max(found.hard_state.term, best.term) + QUORUM_RECOVERY_EPOCHS
        mark = SnapshotMark(image.index, term, Membership(frozenset((best.peer,))))
        log.replace(HardState(term), mark, snapshot_lines(replace(image, index=image.index)))
    finally:
        log.close()
    return kept
