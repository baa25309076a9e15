"""Decides where a broker's log of a partition begins when it is opened, from the image and the stamp on the directory.

The first line that applies:

| state                                                 | where the log begins                                  |
|---|---|
| it is the target of a sealed, unfinished move         | behind the last committed offset, in a log of its own |
| the directory's stamp is of the image's assignment    | the local log, whatever leader epochs it holds        |
| another leads                                         | local files aside; a copy, from that leader's start   |
| it leads by an unclean election, after a hand-over    | 0, which gives way to durable history before it leads |
| its assignment began with durable history alone       | 0, as in the line above                               |
| it was never handed over, and there is no directory   | a new topic: 0                                        |
| otherwise                                             | offline                                               |

A log that an earlier owner has left behind never wins, for its stamp is of another assignment. A healthy log never
loses to the catalog, for the leader epoch is not asked.

An owner may have proposed a seal without learning its outcome; its log is such a healthy one. Where the image shows the
seal, the owner is no replica any more, and opens nothing. Where it does not, the owner's registration has begun a
leader epoch since. In that epoch the seal is refused, and the log goes on.

Promises: a pure function of its arguments.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from headrace.base.ids import FIRST_OFFSET, NO_LEADER, BrokerId, Offset
from headrace.metadata.moves import StorageStateSealed
from headrace.metadata.values import PartitionImage


class TakeOver(NamedTuple):
    """An own, empty log, behind the records of the last owner."""

    state: StorageStateSealed
    is_there: bool
    """The directory has this stamp already: an earlier try was cut short."""


class LocalLog(NamedTuple):
    """The local log."""


class Anew(NamedTuple):
    """An empty log."""

    offset: Offset
    """Where it begins; a copy goes on from the start of its leader's log. Where the partition was ever handed over, the
    log is durable before anything is copied. A copy may be all that there is, and be empty."""


class Offline(NamedTuple):
    reason: str
    """A sentence that says what to do."""


Start: TypeAlias = TakeOver | LocalLog | Anew | Offline
LOCAL: Final = LocalLog()
LOST: Final = (
    "The partition was handed over to this broker, and its log is not there any more: put the directory back. Where "
    "the disk is lost, 'headrace topic elect --unclean' has it go on behind the durable store, without the rest; or "
    "stop this broker, and 'headrace durable recover' has another one do so."
)


def recovery_start(partition: PartitionImage, node: BrokerId, stamped: int | None) -> Start:
    """Return the start of the log. `stamped`: the assignment epoch on the directory of this partition; None: there is
    no such directory. A directory with another stamp than the image's is set aside, unless the result is `Offline`."""
    is_assigned = stamped == partition.assignment_epoch
    move = partition.move
    if move is not None and move.state is not None and move.target == node:
        return TakeOver(move.state, is_assigned)
    if is_assigned:
        return LOCAL
    if partition.leader not in (node, NO_LEADER) or node not in partition.isr:
        return Anew(FIRST_OFFSET)
    gives_up = partition.is_unclean and partition.leader == node and partition.assignment_epoch > 0
    if gives_up or partition.is_recovered:  # the latter even where it died before it had made its first log
        return Anew(
            FIRST_OFFSET
        )  # `broker.partitions.logs.durable_wins` reads the state at the end of history from the store
    if partition.assignment_epoch == 0 and stamped is None:
        return Anew(FIRST_OFFSET)
    return Offline(LOST)
