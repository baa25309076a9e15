"""The state of a simulated Redis: the writes of each master, and what of them is left after a fault.

A fault leaves the first so many writes: those that were synced, or those that the replica had. With them begins the
timeline of the next master.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.storage.redis.errors import refusal
from headrace.storage.redis.server_side.functions import LIBRARY
from headrace.storage.redis.server_side.model import RedisModel
from headrace.storage.redis.server_side.model_keys import as_bytes

WRITES: Final = (b"FCALL", b"SET", b"FUNCTION")
"""Commands that may change something. A replica refuses them."""


class ServerModel(RedisModel):
    """The model of the functions, with the other commands that brokers use. Functions have to be loaded first."""

    def __init__(self) -> None:
        super().__init__()
        self.has_functions = False

    def copied(self) -> ServerModel:
        other = ServerModel()
        other.keys = copy.deepcopy(self.keys)
        other._expires_ms = dict(self._expires_ms)
        other.has_functions = self.has_functions
        other.history = self.history
        return other

    def execute(self, command: Sequence[object], payload: Sequence[object] = (), *, now_ms: int) -> Any:
        name, *rest = map(as_bytes, command)
        match name, rest:
            case b"FUNCTION", [b"LOAD", _]:
                if self.has_functions:
                    raise refusal(f"ERR Library '{LIBRARY}' already exists")
                self.has_functions = True
                return LIBRARY.encode()
            case b"FCALL", _ if not self.has_functions:
                raise refusal("ERR Function not found")
            case b"GET", [key]:
                return self.keys.get(key)
            case b"SET", [key, value, b"NX"]:
                if key in self.keys:
                    return None
                self.keys[key] = value
                return b"OK"
        return super().execute(command, payload, now_ms=now_ms)


class Write(NamedTuple):
    command: Sequence[bytes]
    now_ms: int


class Timeline:
    """The writes of one master. `kept`: how many of them its successor began with; None while it is the newest."""

    def __init__(self, number: int, base: ServerModel) -> None:
        self.number: Final = number
        self.writes: list[Write] = []
        self.kept: int | None = None
        self.base: Final = base

    @property
    def end(self) -> int:
        return len(self.writes)

    def state_at(self, count: int) -> ServerModel:
        """The state after the first `count` writes."""
        model = self.base.copied()
        for write in self.writes[:count]:
            try:
                model.execute(write.command, now_ms=write.now_ms)
            except Exception as error:  # it was refused then, too
                del error
        return model

    def forked(self, count: int) -> tuple[Timeline, ServerModel]:
        """The timeline of a successor that has these writes, and its state."""
        assert self.kept is None, "one successor"
        self.kept = count
        model = self.state_at(count)
        return Timeline(self.number + 1, model.copied()), model
