"""Where a broker's log of a partition begins when it is opened: the decision, from what the image says and what is
stamped on the directory.

First that applies:

| what is                                               | where it begins                                       |
|---|---|
| it is the target of a sealed, unfinished move         | behind the last committed offset, in a log of its own |
| the directory's stamp is of the image's assignment    | the local log, whatever leader epochs it holds        |
| another leads                                         | local files aside; a copy, begun where that one does  |
| it leads by an unclean election, after a hand-over    | 0, which gives way to durable history before it leads |
| its assignment began with durable history alone       | the same                                              |
| it was never handed over, and there is no directory   | a new topic: 0                                        |
| otherwise                                             | offline                                               |

A log that an earlier owner has left behind never wins, for its stamp is of another assignment; a healthy one never
loses to the catalog, for the leader epoch is not asked. A seal that was proposed, and whose outcome its owner never
learned, is one of these: where the image shows it, the owner is no replica any more, and opens nothing; where it does
not, the owner's registration has begun a leader epoch since, in which that seal is refused, and the log goes on.

Promises: a pure function of its arguments.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from headrace.base.ids import FIRST_OFFSET, NO_LEADER, BrokerId, Offset
from headrace.metadata.moves import StorageStateSealed
from headrace.metadata.values import PartitionImage


class TakeOver(NamedTuple):
    """A log of its own, empty, behind what the last owner has left."""

    state: StorageStateSealed
    is_there: bool
    """The directory is stamped so already: an earlier try was cut short."""


class LocalLog(NamedTuple):
    """What is there."""


class Anew(NamedTuple):
    """An empty log."""

    offset: Offset
    """Where it begins; a copy goes on from where its leader's log does. Durable, where it was ever handed over, before
    anything is copied: a copy may be all that there is, and have nothing in it."""


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
    """`stamped`: the assignment epoch on the directory of this
    partition; None: there is no such directory. What is stamped otherwise than the image says is to be set aside, where
    the answer is not `Offline`."""
    is_assigned = stamped == partition.assignment_epoch
    move = partition.move
    if move is not None and move.state is not None and move.target == node:
        return TakeOver(move.state, is_assigned)
    if is_assigned:
        return LOCAL
    if partition.leader not in (node, NO_LEADER) or node not in partition.isr:
        return Anew(FIRST_OFFSET)
    gives_up = partition.is_unclean and partition.leader == node and partition.assignment_epoch > 0
    if gives_up or partition.is_recovered:  # the latter also where it died before it had made its first log
        return Anew(
            FIRST_OFFSET
        )  # `broker.partitions.durable_wins` reads of the store what is to be known where that ends
    if partition.assignment_epoch == 0 and stamped is None:
        return Anew(FIRST_OFFSET)
    return Offline(LOST)
