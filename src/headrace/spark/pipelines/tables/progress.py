"""The log of a table: numbered commits in `_headrace_progress`, each a file of JSON lines that plain SQL reads.

A commit is one object, put only if absent. It is there whole or not at all, and of two commits for one version one is
refused. The table consists of the files that its commits add and do not remove. The pipeline's progress is the ranges
that they cover. Promises that no record is claimed twice: a commit whose ranges overlap earlier ones is refused. So is
a commit that was planned on an older version.

Lines (`kind`), each with its ``version``:

- one ``commit`` (``action``: begin, append or compact; ``pipeline``, ``run``, ``time_ms``, ``columns``,
  ``partition_by``, ``format``);
- ``range`` (``topic``, ``topic_id``, ``partition``, ``start_offset``, ``end_offset``, exclusive);
- ``file`` (``action``: add or remove; ``path``, ``records``, ``bytes``, ``values``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData, UsageError
from headrace.base.limits import OBJECT_SINGLE_BYTES_MAX, PIPELINE_COMMITS_HELD_MAX, PIPELINE_COMMITS_READ_AT_ONCE_MAX
from headrace.base.ports import Objects
from headrace.spark.read.positions import Positions, TopicOffsets

PROGRESS: Final = "_headrace_progress"
BEGIN: Final = "begin"
APPEND: Final = "append"
COMPACT: Final = "compact"
PARQUET: Final = "parquet"


class Column(NamedTuple):
    """A column of the table. `type` is in Spark's DDL."""

    name: str
    type: str


class Claim(NamedTuple):
    """Offsets whose records, if any, are in the table."""

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    """Exclusive."""


class File(NamedTuple):
    """One Parquet file."""

    path: str
    """Relative to the table's path."""
    records: int
    bytes: int
    values: Mapping[str, Any]
    """Values of the table's partition columns, equal in all rows of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version's change. Invariant: an append removes nothing, and a compaction claims nothing."""

    version: int
    action: str
    pipeline: str
    run: str
    """Unique. A writer recognises its own commit by it where the answer to a put was lost."""
    time_ms: int
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    format: str = PARQUET
    claims: tuple[Claim, ...] = ()
    added: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()

    def encode(self) -> bytes:
        head = {
            "kind": "commit",
            "action": self.action,
            "pipeline": self.pipeline,
            "run": self.run,
            "time_ms": self.time_ms,
            "columns": [each._asdict() for each in self.columns],
            "partition_by": list(self.partition_by),
            "format": self.format,
        }
        rows = [head]
        rows += [{"kind": "range", **each._asdict()} for each in self.claims]
        for file in self.added:
            row = {"kind": "file", "action": "add", **file._asdict()}
            rows.append(row | {"values": json.dumps(dict(file.values), ensure_ascii=False)})
        rows += [{"kind": "file", "action": "remove", "path": path} for path in self.removed]
        return "".join(json.dumps({"version": self.version, **row}) + "\n" for row in rows).encode()

    @classmethod
    def decode(cls, data: bytes) -> Commit:
        """Raises CorruptData."""
        try:
            head, *rows = [json.loads(line) for line in data.decode().splitlines()]
            adds = [row for row in rows if row["kind"] == "file" and row["action"] == "add"]
            return cls(
                version=head["version"],
                action=head["action"],
                pipeline=head["pipeline"],
                run=head["run"],
                time_ms=head["time_ms"],
                columns=tuple(Column(**each) for each in head["columns"]),
                partition_by=tuple(head["partition_by"]),
                format=head["format"],
                claims=tuple(Claim(*(row[name] for name in Claim._fields)) for row in rows if row["kind"] == "range"),
                added=tuple(File(row["path"], row["records"], row["bytes"], json.loads(row["values"])) for row in adds),
                removed=tuple(row["path"] for row in rows if row["kind"] == "file" and row["action"] == "remove"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"It is no commit of a table: {error!r}.") from error


@dataclass(frozen=True, slots=True)
class Covered:
    """Covered offsets of one partition of one topic: ranges in order, which neither touch nor overlap."""

    ranges: tuple[tuple[int, int], ...] = ()

    def with_claim(self, start: int, end: int) -> Covered | None:
        """With this range added; None where some of it is covered already."""
        if any(max(start, low) < min(end, high) for low, high in self.ranges):
            return None
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self.ranges, (start, end)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return Covered(tuple(merged))

    @property
    def next(self) -> int:
        return self.ranges[-1][1]

    def holes(self, start: int) -> Iterator[tuple[int, int]]:
        """The uncovered parts of [start, next), in order."""
        for low, high in self.ranges:
            if start < low:
                yield start, low
            start = max(start, high)


@dataclass(frozen=True, slots=True)
class State:
    """The state after all commits."""

    version: int = -1
    pipeline: str = ""
    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    format: str = PARQUET
    covered: Mapping[tuple[str, int], Covered] = field(default_factory=dict)
    """By topic id and partition."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Name to the id that was last read under it."""
    files: Mapping[str, File] = field(default_factory=dict)

    def after(self, commit: Commit) -> State:
        """The state after one more commit. Raises CorruptData where it does not follow."""
        return self.after_all((commit,))

    def after_all(self, commits: Iterable[Commit]) -> State:
        """The state after more commits, in order, in time proportional to their content. Raises CorruptData where one
        does not follow.
        """
        covered, topics, files = dict(self.covered), dict(self.topics), dict(self.files)
        found = self
        for commit in commits:
            if commit.version != found.version + 1:
                raise CorruptData(f"Version {commit.version} of the table follows on {found.version}.")
            _claim(commit, covered, topics)
            _change(commit, files)
            found = replace(
                found,
                version=commit.version,
                pipeline=found.pipeline or commit.pipeline,
                columns=commit.columns or found.columns,
                partition_by=commit.partition_by if commit.action == BEGIN else found.partition_by,
                format=commit.format if commit.action == BEGIN else found.format,
            )
        return replace(found, covered=covered, topics=topics, files=files)

    @property
    def positions(self) -> Positions:
        """Where to continue, as a stream's offsets."""
        return {
            name: TopicOffsets(
                topic_id, {at: each.next for (of, at), each in sorted(self.covered.items()) if of == topic_id}, {}
            )
            for name, topic_id in self.topics.items()
        }

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files.values())


def _claim(commit: Commit, covered: dict[tuple[str, int], Covered], topics: dict[str, str]) -> None:
    """Raises CorruptData for offsets that are covered already."""
    for claim in commit.claims:
        place = (claim.topic_id, claim.partition)
        found = covered.get(place, Covered()).with_claim(claim.start_offset, claim.end_offset)
        if found is None:
            raise CorruptData(
                f"Version {commit.version} claims offsets {claim.start_offset} to {claim.end_offset} of topic "
                f"'{claim.topic}', partition {claim.partition}, of which the table has some already."
            )
        covered[place] = found
        topics[claim.topic] = claim.topic_id


def _change(commit: Commit, files: dict[str, File]) -> None:
    """Raises CorruptData for a removed file that is missing, or an added one that is there already."""
    removed = {*commit.removed}
    for path in commit.removed:
        if files.pop(path, None) is None:
            raise CorruptData(f"Version {commit.version} removes '{path}', which is not in the table.")
    for file in commit.added:
        if file.path in files or file.path in removed:
            raise CorruptData(f"Version {commit.version} adds '{file.path}', which is in the table.")
        files[file.path] = file


class ConcurrentRun(UsageError):  # noqa: N818 - a state of the table
    """Another run committed the version that this run was to commit."""

    def __init__(self, pipeline: str, version: int) -> None:
        super().__init__(
            f"Another run of pipeline '{pipeline}' committed version {version} of its table meanwhile, so that this "
            "one added nothing and stops: let one run at a time, and start it again where none runs now."
        )


class ProgressLog:
    """The commits of the table in these objects, whose root is the table's path."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def state(self, since: State | None = None) -> State:
        """The present state. Raises CorruptData where a commit is missing, or does not follow."""
        state = since or State()
        return state.after_all(self.commits(state.version + 1))

    def commits(self, first: int = 0) -> Iterator[Commit]:
        """Commits from version `first` on, in order."""
        names = self._names(first)
        if names != [*map(commit_key, range(first, first + len(names)))]:
            names = self._names(first)  # a listing may show a new object without an older one
        for expected, (name, data) in enumerate(self._read(names), first):
            if name != commit_key(expected):
                raise CorruptData(f"Object '{commit_key(expected)}' of the table is missing.")
            yield Commit.decode(data)

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Read the objects in order, in groups of bounded size. A thread pool ends before its group is yielded. The
        garbage collector may end an abandoned generator, and no thread must be waited for there.
        """
        for at in range(0, len(names), PIPELINE_COMMITS_HELD_MAX):
            some = names[at : at + PIPELINE_COMMITS_HELD_MAX]
            with ThreadPoolExecutor(PIPELINE_COMMITS_READ_AT_ONCE_MAX) as pool:
                found = [*pool.map(self._objects.get, some)]
            yield from zip(some, found, strict=True)

    def _names(self, first: int) -> list[str]:
        keys = [meta.key for meta in self._objects.list(f"{PROGRESS}/")]
        return [key for key in keys if key.endswith(".json") and key >= commit_key(first)]

    def commit(self, state: State, commit: Commit) -> State:
        """Put a commit, and return the state after it.

        Raises ConcurrentRun where another commit is there, and CorruptData where it does not follow. Raises UsageError
        where it is too large: stores have no condition for objects that are put in parts.
        """
        found, data = state.after(commit), commit.encode()
        if len(data) > OBJECT_SINGLE_BYTES_MAX:
            raise UsageError(
                f"Version {commit.version} of the table would list {len(commit.added)} files in {len(data)} bytes, but "
                f"a commit has at most {OBJECT_SINGLE_BYTES_MAX}: lower maxBytesPerTrigger of section [source], or "
                "partition the table by a column of fewer values."
            )
        key = commit_key(commit.version)
        stored = self._objects.put(key, data)
        if not stored and Commit.decode(self._objects.get(key)).run != commit.run:
            raise ConcurrentRun(commit.pipeline, commit.version)
        return found


def commit_key(version: int) -> str:
    return f"{PROGRESS}/{version:020d}.json"


def live_files(commits: Iterable[Commit]) -> Sequence[File]:
    return list(State().after_all(commits).files.values())
