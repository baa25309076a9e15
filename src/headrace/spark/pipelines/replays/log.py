"""The progress of a replay: numbered JSON objects in `_headrace_replay` of its checkpoint, each put only if absent.

The first object names the source and the target. Each portion then has two: one with its offsets, before anything of it
is written, and one when it is done. Each run that continues a portion puts one more. So a run that continues knows the
portion's offsets, the names in its records' headers, and where in the target they can lie.

Promises that of two simultaneous runs one is refused. A run finds out when it puts its next object, or checks
(`check`), and its own object is no longer the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ports import Objects
from headrace.base.reading import is_natural
from headrace.spark.read.positions import Positions, StreamOffsets, formatted, parsed

REPLAYED: Final = "_headrace_replay"
BEGIN: Final = "begin"
PLAN: Final = "plan"
DONE: Final = "done"


class Origin(NamedTuple):
    """Offsets of one partition, which one task replays."""

    topic: str
    partition: int
    start: int
    end: int
    """Exclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """The unit of writing."""

    number: int
    origins: tuple[Origin, ...]
    end: StreamOffsets
    """Offsets of the source behind this portion."""
    partitions: int
    """Number of the target's partitions when it was planned. Keys are placed by this number, whichever run
    continues.
    """
    target_ends: Mapping[int, int]
    """Ends of the target's partitions before this portion."""

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Portion:
        return cls(
            number=row["number"],
            origins=tuple(Origin(*each) for each in row["origins"]),
            end=row["end"],
            partitions=row["partitions"],
            target_ends={int(partition): end for partition, end in row["target_ends"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The state that the objects describe together."""

    version: int
    """Number of the last object."""
    name: str
    query: str
    """Identifies the replay's records."""
    target: str
    target_id: str
    next: StreamOffsets
    """Offsets behind the finished portions."""
    number: int = -1
    """Number of the last finished portion."""
    pending: Portion | None = None
    """The portion that was begun and is not done."""

    @property
    def positions(self) -> Positions:
        """Where to continue."""
        return {name: topic._replace(begun={}) for name, topic in parsed(self.next).items()}


class ConcurrentReplay(UsageError):  # noqa: N818 - a state of the checkpoint
    """Another run put the next object."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(
            f"Another run of pipeline '{name}' went on from this checkpoint meanwhile (its object {version}), so that "
            "this one stops: let one run at a time; what both wrote is there twice, and dropRepeats leaves it out."
        )


class ReplayLog:
    """The log in these objects, whose root is the checkpoint."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def state(self) -> Replayed | None:
        """The present state; None where nothing was begun. Raises CorruptData."""
        stems = [meta.key[len(REPLAYED) + 1 :].removesuffix(".json") for meta in self._objects.list(f"{REPLAYED}/")]
        numbers = [int(stem) for stem in stems if is_natural(stem)]
        if not numbers:
            return None
        first, last = self._row(0), self._row(max(numbers))
        try:
            begun = Replayed(
                version=0, **{name: first[name] for name in ("name", "query", "target", "target_id", "next")}
            )
            if last["kind"] == BEGIN:
                return begun
            known = replace(begun, version=max(numbers), next=last["next"], number=last["number"])
            return known if last["kind"] == DONE else replace(known, pending=Portion.from_json(last["portion"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"Object '{key_of(max(numbers))}' is none of a replay: {error!r}.") from error

    def begin(self, state: Replayed, run: str) -> Replayed:
        """Put the first object. Raises ConcurrentReplay."""
        row = {name: value for name, value in asdict(state).items() if name not in ("version", "number", "pending")}
        self._put(state.name, 0, run, {"kind": BEGIN, **row})
        return state

    def plan(self, state: Replayed, portion: Portion, run: str) -> Replayed:
        """Put a planned portion, before anything of it is written. Raises ConcurrentReplay."""
        after = replace(state, version=state.version + 1, pending=portion)
        row = {"kind": PLAN, "number": state.number, "next": state.next, "portion": asdict(portion)}
        self._put(state.name, after.version, run, row)
        return after

    def take(self, state: Replayed, run: str) -> Replayed:
        """Put the pending portion again, as it was planned, for a run that continues it. Other writers of it stop at
        their next check. Raises ConcurrentReplay.
        """
        assert state.pending is not None, "it was planned"
        return self.plan(state, state.pending, run)

    def check(self, name: str, version: int) -> None:
        """Raises ConcurrentReplay where another run continued from this version."""
        if self.has(version + 1):
            raise ConcurrentReplay(name, version + 1)

    def has(self, version: int) -> bool:
        """Whether the object exists, as far as this machine sees."""
        try:
            self._objects.size(key_of(version))
        except FileNotFoundError:
            return False
        return True

    def done(self, state: Replayed, run: str, records: int) -> Replayed:
        """Put the end of the portion, when all of it is acknowledged. Raises ConcurrentReplay."""
        assert state.pending is not None, "it was planned"
        following = formatted(replace(state, next=state.pending.end).positions)
        after = replace(state, version=state.version + 1, next=following, number=state.pending.number, pending=None)
        self._put(
            state.name,
            after.version,
            run,
            {"kind": DONE, "number": after.number, "next": after.next, "records": records},
        )
        return after

    def _put(self, name: str, version: int, run: str, row: Mapping[str, Any]) -> None:
        key = key_of(version)
        stored = self._objects.put(key, json.dumps({"version": version, "run": run, **row}).encode())
        if not stored and self._row(version)["run"] != run:
            raise ConcurrentReplay(name, version)

    def _row(self, version: int) -> dict[str, Any]:
        try:
            found = json.loads(self._objects.get(key_of(version)))
        except ValueError as error:
            raise CorruptData(f"Object '{key_of(version)}' is none of a replay: {error}.") from error
        if not isinstance(found, dict):
            raise CorruptData(f"Object '{key_of(version)}' is none of a replay.")
        return found


def key_of(version: int) -> str:
    return f"{REPLAYED}/{version:020d}.json"


def made_anew(topic: str) -> UsageError:
    return UsageError(
        f"Topic '{topic}' was made anew since this replay began, so that it cannot go on: begin another one, with a "
        "checkpoint of its own."
    )
