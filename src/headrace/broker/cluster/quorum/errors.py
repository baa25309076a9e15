"""Errors of changes of the cluster's state that were not made here, or are not known to have been made. All but a
failed disk can be tried again."""

from __future__ import annotations

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId
from headrace.base.limits import METADATA_ENTRY_BYTES_MAX
from headrace.raft.membership import MembershipRefusal


class MetadataStopped(HeadraceError):  # noqa: N818 - a state, not a mistake
    """Nothing more is committed on this node: it is stopping."""


class NotController(HeadraceError):  # noqa: N818
    """Nothing was done: another node decides, or none does yet. Retriable."""

    def __init__(self, leader: BrokerId | None) -> None:
        who = f"broker {leader} is" if leader is not None else "there is none at this moment"
        super().__init__(f"This broker is not the controller ({who}): ask the controller, or again in a moment.")
        self.leader = leader
        """The leader, as far as this node knows."""


class OutcomeUnknown(HeadraceError):  # noqa: N818
    """This node stopped being the controller before the change was committed: it may have been made, or be made yet.
    Retriable, where twice is no harm."""

    def __init__(self) -> None:
        super().__init__("The controller moved before the change was committed: see whether it was made, or try again.")


class ChangeTooLarge(HeadraceError):  # noqa: N818
    """Nothing was done, and repeating the same change will not help."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"The change takes {size} bytes in the cluster's log, and {METADATA_ENTRY_BYTES_MAX} are the most: "
            "split it into smaller ones."
        )


class ChangeRefused(HeadraceError):  # noqa: N818
    """The commit log refused the change: nothing was done."""

    def __init__(self, reason: str, refusal: MembershipRefusal | None = None) -> None:
        super().__init__(f"The quorum refuses the change: {reason}.")
        self.refusal = refusal
