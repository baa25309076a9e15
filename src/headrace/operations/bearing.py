"""Resilience of the quorum: how many voters may be lost before it can decide nothing any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.net.client.members import BrokerView, QuorumView


def voters_of(quorum: QuorumView) -> list[int]:
    return [member.id for member in quorum.members if member.voter]


def down_of(voters: Collection[int], brokers: Sequence[BrokerView]) -> list[int]:
    """Voters that are fenced, or not registered."""
    live = {broker.id for broker in brokers if not broker.fenced}
    return sorted(set(voters) - live)


def losses_borne(voters: int, down: int) -> int:
    """How many more voters may be lost; below 0: too many are lost already."""
    return voters - down - (voters // 2 + 1)


def bearing(quorum: QuorumView, brokers: Sequence[BrokerView]) -> str:
    """A sentence on the losses, and on the learners: "2 voters: bears no loss; broker 4 will be promoted once caught
    up".
    """
    voters = voters_of(quorum)
    down = down_of(voters, brokers)
    left = losses_borne(len(voters), len(down))
    count = f"{len(voters)} voter{'s' if len(voters) != 1 else ''}"
    dead = f", of which {', '.join(map(str, down))} is down" if down else ""
    bears = f"bears the loss of {left} more" if left > 0 else "bears no loss"
    said = f"{count}{dead}: {bears}"
    return f"{said}; {quorum.outlook}" if quorum.outlook else said
