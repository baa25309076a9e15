"""Bugs to plant in the shipped broker, one at a time, to show that the simulator finds them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

PLANTS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {}
