"""One problem that `headrace doctor` tells."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One problem."""

    kind: str
    subject: str
    text: str
    todo: str
    is_wrong: bool = True
    """False: it may be intended."""
