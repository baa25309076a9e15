"""Where a log begins when it is opened, row by row of the table, and the stories that led to it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.ids import NO_LEADER, BrokerId, LeaderEpoch, Offset, PartitionEpoch, PartitionIndex
from headrace.metadata.moves import Move
from headrace.metadata.values import PartitionImage
from headrace.replica.recovery_start import LOCAL, Anew, Offline, TakeOver, recovery_start
from tests.metadata.histories import sealed

A, B, C = (BrokerId(one) for one in (1, 2, 3))
STATE = sealed(A, 5, 0, 21)


def partition(*replicas: BrokerId, assignment: int, leader: BrokerId | None = None, **more: Any) -> PartitionImage:
    return PartitionImage(
        index=PartitionIndex(0),
        leader=replicas[0] if leader is None else leader,
        leader_epoch=LeaderEpoch(99),
        partition_epoch=PartitionEpoch(99),
        replicas=replicas,
        isr=more.pop("isr", replicas[:1]),
        assignment_epoch=assignment,
        **more,
    )


OWNED = partition(B, assignment=6)
SEALED = partition(B, assignment=6, move=Move(source=A, target=B, state=STATE))
BACK = partition(A, assignment=9, move=Move(source=B, target=A, state=STATE))
NEW = partition(A, assignment=0)
RECOVERED = partition(B, assignment=9, recovered_epoch=9)
COPIED = partition(B, C, assignment=6, isr=(B,))


@pytest.mark.parametrize(
    ("image", "node", "stamped", "start"),
    [
        # the target of a sealed, unfinished move
        (SEALED, B, None, TakeOver(STATE, False)),
        (SEALED, B, 6, TakeOver(STATE, True)),
        (SEALED, B, 0, TakeOver(STATE, False)),
        (BACK, A, 0, TakeOver(STATE, False)),
        # the stamp is the image's: also in an epoch that began with a restart, and while a move is aimed
        (OWNED, B, 6, LOCAL),
        (NEW, A, 0, LOCAL),
        (partition(A, assignment=0, move=Move(source=A, target=B)), A, 0, LOCAL),
        (partition(B, assignment=6, leader=NO_LEADER), B, 6, LOCAL),
        (COPIED, C, 6, LOCAL),
        # another leads
        (COPIED, C, None, Anew(Offset(0))),
        (COPIED, C, 0, Anew(Offset(0))),
        # an unclean election, after a hand-over
        (partition(B, assignment=6, is_unclean=True), B, None, Anew(Offset(0))),
        (partition(B, assignment=6, is_unclean=True), B, 0, Anew(Offset(0))),
        (partition(B, assignment=6, is_unclean=True), B, 6, LOCAL),
        (partition(B, C, assignment=6, is_unclean=True), C, None, Anew(Offset(0))),
        (partition(B, assignment=6, leader=NO_LEADER, is_unclean=True), B, None, Offline),
        # recovered from durable history alone: also where it died before it had made its first log
        (RECOVERED, B, None, Anew(Offset(0))),
        (RECOVERED, B, 0, Anew(Offset(0))),
        (RECOVERED, B, 9, LOCAL),
        (partition(B, assignment=9, recovered_epoch=9, leader=NO_LEADER), B, None, Anew(Offset(0))),
        (partition(B, C, assignment=9, recovered_epoch=9), C, 0, Anew(Offset(0))),
        (partition(B, C, assignment=9, recovered_epoch=9, leader=NO_LEADER), C, 0, Anew(Offset(0))),
        (partition(B, assignment=12, recovered_epoch=9), B, None, Offline),
        # a new topic
        (NEW, A, None, Anew(Offset(0))),
        # otherwise
        (OWNED, B, None, Offline),
        (OWNED, B, 0, Offline),
        (OWNED, B, 9, Offline),
        (partition(B, assignment=6, leader=NO_LEADER), B, 0, Offline),
        (NEW, A, 3, Offline),
    ],
)
def test_the_first_row_that_applies_says_where_a_log_begins(
    image: PartitionImage, node: BrokerId, stamped: int | None, start: object
) -> None:
    found = recovery_start(image, node, stamped)
    assert isinstance(found, Offline) if start is Offline else found == start
