"""The native roads of partitions. Of a led one: appends of plain batches, and what follows a flush. Of a copied one:
appends.

They are twins of `headrace.broker.partitions.partition` and `following`, which have all rules. `docs/rooms/native.md`
tells how the two share the partition's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from headrace.base import limits
from headrace.logs import get_logger
from headrace.native import ROAD, Hot, HotCopy
from headrace.replica.leader import AdvanceHighWatermark
from headrace.replica.producer_snapshots import RememberedBatch
from headrace.storage.engine.appending import Appended
from headrace.storage.engine.placing import Placed
from headrace.wire.batches import BatchHeader
from headrace.wire.walking import UNWALKED, Walked

if TYPE_CHECKING:
    from headrace.broker.partitions.following import FollowerPartition
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.replica import Replica

log = get_logger(__name__)


class UnchangedError(Exception):
    """The native road has failed while it looked at a batch, and nothing has changed. Its cause is what was raised."""


KINDS: Final = (
    tuple.__new__,
    Appended,
    Walked,
    Placed,
    BatchHeader,
    RememberedBatch,
    AdvanceHighWatermark,
    UNWALKED,
    limits,
    UnchangedError,
)
"""In the order of `Kinds` in native/src/partition/parts.rs."""


def hot_road(partition: Partition) -> Hot | None:
    """Return the partition's native road; None: there is none, or its log is not for it."""
    if ROAD.native is None or not partition.log.is_open_to_native:
        return None
    return ROAD.native.HotPartition(partition, KINDS)


def hot_copy(copy: FollowerPartition, sound: object) -> HotCopy | None:
    """As `hot_road`, of a partition that is copied. `sound`: a leader's report of no damage."""
    if ROAD.native is None or not copy.log.is_open_to_native:
        return None
    return ROAD.native.HotCopy(copy, KINDS, sound)


def give_up(partition: Replica) -> None:
    """Trust the log no more, as the native road may have stopped half-way in an append. A clean close would vouch for
    what the files hold; recovery finds it out."""
    cast("Any", partition.log).give_up()  # no other log is open to native


def leave(partition: Replica, unchanged: UnchangedError) -> None:
    """Leave the native road, as it has a bug, so that the twins go on. Raises the cause where that is no bug: no memory
    is left, or the broker is interrupted. A twin that runs out of memory, too, may stop half-way."""
    cause = unchanged.__cause__
    assert cause is not None, "the native road names it"
    if isinstance(cause, MemoryError) or not isinstance(cause, Exception):
        raise cause from None
    log.error(
        "the native road failed, and pure Python goes on: a bug of the broker, please report it",
        topic=partition.topic,
        partition=partition.topic_partition.partition,
        exc_info=cause,
    )
    partition.hot = None
