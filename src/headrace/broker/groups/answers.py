"""The answers that a client of a group may get."""

from __future__ import annotations

from typing import TypeAlias

from headrace.coordinators.groups.events import AnyReply
from headrace.wire.errors import ErrorCode

Told: TypeAlias = AnyReply | ErrorCode
"""A group's own answer, or why it cannot be asked."""
