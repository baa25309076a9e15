"""The native road: compiled twins of hot functions, where the distribution `headrace-native` is installed.

Promises: without it, or with HEADRACE_NATIVE=0, all runs as pure Python. An extension that was made for another version
of this interface is not used. The extension hands back what it does not take, and the twin in Python decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from headrace.base.errors import UsageError
from headrace.base.ports import Buffer

VARIABLE: Final = "HEADRACE_NATIVE"
"""0: the extension is not used. 1: it has to be there. Otherwise it is used where it is there."""
INTERFACE: Final = 7
"""Rises when a function of the extension takes or gives something else than before."""
NAME: Final = "headrace_native"
Uncommitted: TypeAlias = tuple[int, int, bytes, int, Any, Any, Any]
"""See `Native.produce_one`."""


class Hot(Protocol):
    """One partition that this broker leads, while its role lasts. Its state stays in the partition's own objects, so
    that this and the twins in Python may take turns. None: the twin is to do it, and nothing has changed. Raises
    `UnchangedError` where it fails before it has changed anything."""

    def examine(self, records: Buffer, /) -> Any:
        """The twin is `headrace.broker.partitions.partition.Partition.examine`."""

    def append(self, records: Buffer, needs_isr: bool, walked: tuple[int, int, bool], /) -> Any:
        """The twin is `Partition.append`, with the facts of the records. Raises as the twin's log does."""

    def take(self, records: Buffer, needs_isr: bool, /) -> Any:
        """`examine`, then `append`."""

    def durable(self, end: int, appended_bytes: int, /) -> None:
        """The twin is `Partition._on_durable`."""


class HotCopy(Protocol):
    """As `Hot`, of one partition that this broker copies. It is used by `copy_rows` and `write_reports`."""


class Native(Protocol):
    """The functions of the extension. Each returns None where its twin is to look at the bytes."""

    INTERFACE: int

    def HotPartition(self, partition: object, kinds: tuple[object, ...], /) -> Hot:  # noqa: N802 - it is a class
        """`kinds`: classes and constants that it makes and compares with."""

    def HotCopy(self, copy: object, kinds: tuple[object, ...], sound: object, /) -> HotCopy:  # noqa: N802 - it is a class
        """As `HotPartition`. `sound`: a leader's report of no damage."""

    def copy_rows(self, source: object, frame: memoryview, /) -> int:
        """Take the rows of a leader's frame, in order. Returns how many are taken, of which none is left to the twin;
        -1: all. The twin is `headrace.broker.replication.copying.Source._on_row`. Raises as `Source.on_native_failure`,
        which it calls."""

    def take_reports(
        self, session: object, frame: memoryview, at: int, may_join: bool, /
    ) -> tuple[int, bool, int] | None:
        """Take a follower's frame that reports flushed ends, and nothing else; its first `at` bytes identify it.

        Returns how many reports are taken (-1: all), whether an answer is wanted, and its most bytes. The twin is
        `headrace.broker.replication.followers.FollowerSession._on_flushed`."""

    def take_ready(self, session: object, bytes_max: int, /) -> list[Buffer] | None:
        """The twin is `FollowerSession._take`, and `wire.replica_fetch.encode_answer` of that, where all that is ready
        is in memory, and nothing else is to be told."""

    def write_reports(self, source: object, who: bytes, wants: bool, bytes_max: int, rows_max: int, /) -> bytes | None:
        """The frame of `Source._send`, where nothing is placed or forgotten. The reports are given then."""

    LogState: type
    SegmentState: type
    ContentsState: type
    LeaderState: type
    RoleState: type

    def append_all(
        self,
        correlation_id: int,
        topics: Sequence[tuple[bytes, Sequence[tuple[int, Buffer]]]],
        known: Mapping[Any, Any],
        needs_isr: bool,
        /,
    ) -> bytes | list[tuple[Any, Any, Any]] | None:
        """Append the batches of a request. The twin is `headrace.broker.handlers.plain_produce._Road._take_all`.

        Returns the frame of the answer, where all are committed. Otherwise it returns what became of each: its
        partition, the facts of its records, and an `Appended`, a `WriteRefusal`, or None. For None the twin is to
        append it. Raises as `Partition.on_native_failure`, which it calls."""

    def produce_one(self, frame: memoryview, known: Mapping[Any, Any], /) -> bytes | Uncommitted | None:
        """Serve the frame of a Produce of one batch with acks=all. The twin is `_Road.serve`.

        Returns the frame of the answer, where the batch is committed. Otherwise it returns what waits for that:
        correlation id, timeout in ms, topic, index, partition, `Appended`, start offset. For None the twin is to look.
        That is so, too, where the disk has failed, which the partition has noted. Raises as
        `Partition.on_native_failure`, which it calls."""

    def find_places(
        self, topics: Sequence[tuple[bytes, Sequence[tuple[int, int, int, int]]]], known: Mapping[Any, Any], /
    ) -> list[tuple[Any, tuple[int, int, int, int]]] | None:
        """The twin is `_Road._find_all`, where all partitions are known."""

    def read_places(
        self,
        places: Sequence[tuple[object, tuple[int, int, int, int]]],
        bytes_max: int,
        committed_only: bool,
        read: Callable[..., Buffer | None],
        aborted: Callable[..., Sequence[Any] | None],
        /,
    ) -> tuple[list[Any], int] | Literal[False] | None:
        """The twin is `headrace.broker.handlers.plain_fetch._Road._read_all`, which has the result's second field, too.
        False: `read` or `aborted` has returned None."""

    def watch_all(self, partitions: tuple[object, ...], waiter: object, /) -> None:
        """`waiter` is a `ParkedFetch`. Calls `watch` of each partition, or does the same."""

    def unwatch_all(self, partitions: tuple[object, ...], waiter: object, /) -> None:
        """Calls `unwatch` of each partition, or does the same."""

    def walk_records(
        self, data: Buffer, count: int, base_timestamp: int, headers_max: int, headers_of_one_max: int, /
    ) -> tuple[int, int, bool] | None:
        """The twin is `headrace.wire.walking.walk_in_python`."""

    def check_batch(self, buffer: Buffer, at: int, end: int, compacted: bool, /) -> tuple[int, ...] | None:
        """The twin is `headrace.wire.batches.check_in_python`."""

    def read_plain_produce(
        self, frame: memoryview, /
    ) -> tuple[int, int, int, list[tuple[bytes, list[tuple[int, memoryview]]]]] | None:
        """The twin is `headrace.wire.plain_produce.read_in_python`."""

    def read_plain_fetch(
        self, frame: memoryview, /
    ) -> tuple[int, int, int, int, int, int, bytes, list[tuple[bytes, list[tuple[int, int, int, int]]]]] | None:
        """The twin is `headrace.wire.plain_fetch.read_in_python`."""

    def write_plain_found(
        self,
        version: int,
        correlation_id: int,
        topics: Sequence[tuple[bytes, Sequence[tuple[int, int, int, int, Buffer, Sequence[object]]]]],
        committed_only: bool,
        bytes_max: int,
        /,
    ) -> bytes | None:
        """The twin is `headrace.wire.plain_fetch.write_in_python`. None where not all is one buffer of `bytes_max`."""


class Road(NamedTuple):
    """The road that is taken."""

    native: Native | None
    """None: pure Python."""
    name: str
    """For people."""


PURE: Final = "pure Python"


def choose(environment: Mapping[str, str]) -> Road:
    """Return the road to take. Raises UsageError where the extension has to be there and is not, or does not fit."""
    wanted = environment.get(VARIABLE, "")
    if wanted == "0":
        return Road(None, PURE)
    if wanted not in ("", "1"):
        raise UsageError(f"{VARIABLE} is {wanted!r}: set it to 0 (pure Python) or 1 (native), or not at all.")
    try:
        module = import_module(NAME)
    except ImportError as error:
        if wanted:
            raise UsageError(f"{VARIABLE} is 1, and {NAME} is not installed: 'make native' compiles it.") from error
        return Road(None, PURE)
    if (found := getattr(module, "INTERFACE", None)) != INTERFACE:
        problem = f"{NAME} has interface {found}, and this version of Headrace needs {INTERFACE}"
        if wanted:
            raise UsageError(f"{problem}: install both in the same version.")
        return Road(None, f"{PURE}, for {problem}")
    return Road(cast("Native", module), "native")


ROAD: Final = choose(os.environ)

if TYPE_CHECKING or ROAD.native is None:

    class LogState:
        """The base of a log whose appends may be native. Some of its fields lie in the extension's memory then."""

        __slots__ = ()

    class SegmentState:
        """As `LogState`, of one of its segments."""

        __slots__ = (
            "base",
            "created_ms",
            "end",
            "file",
            "first_timestamp",
            "max_timestamp",
            "max_timestamp_offset",
            "since_entry",
            "size",
        )
        file: Any

    class ContentsState:
        """As `LogState`, of all its segments."""

        __slots__ = ("active", "held_size", "size")
        active: Any

    class LeaderState:
        """As `LogState`, of what a leader knows."""

        __slots__ = ("leader",)
        leader: Any

        @property
        def high_watermark(self) -> Any:
            return self.leader.high_watermark

    class RoleState:
        """As `LogState`, of a broker's part in a partition."""

        __slots__ = ()

else:
    LogState, LeaderState, RoleState = ROAD.native.LogState, ROAD.native.LeaderState, ROAD.native.RoleState
    SegmentState, ContentsState = ROAD.native.SegmentState, ROAD.native.ContentsState
