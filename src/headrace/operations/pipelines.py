"""The state of pipelines: what each file of a directory asks for, and how far its table, checkpoint or report says that
it has come.

Promises: it reads, and changes nothing. It reads boundedly many files and objects. A file or a place that cannot be
read is a trouble of its pipeline, and no failure. Of a pipeline's file nothing but names and places is told: it may
have secrets. All of it blocks.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.limits import PIPELINE_COMMITS_SHOWN_MAX, PIPELINE_FILE_BYTES_SHOWN_MAX, PIPELINES_SHOWN_MAX
from headrace.base.ports import ObjectMeta, Objects
from headrace.storage.disk import ReadOnlyDisk
from headrace.storage.objects import open_objects

TABLE: Final = "_headrace_progress/"
REPLAY: Final = "_headrace_replay/"


class Reached(NamedTuple):
    """How far a pipeline has come in one partition."""

    topic: str
    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """One pipeline."""

    file: Path
    name: str = ""
    kind: str = ""
    source: str = ""
    """The topics that it reads."""
    place: str = ""
    """Its table, checkpoint or report."""
    at_ms: int | None = None
    """When it last got on, in milliseconds since 1970; None: it has not begun, or nothing tells."""
    steps: int | None = None
    """Commits of its table, or portions of its replay."""
    records: int | None = None
    """Rows of its table; None: it has none, or there are too many commits to count them."""
    reached: Sequence[Reached] = ()
    problems: int | None = None
    """Things that its last audit found wrong."""
    page: Path | None = None
    """The page of its last report."""
    trouble: str = ""
    """Why it cannot be told; empty: it can."""


def states(directory: Path) -> list[PipelineState]:
    """Those of all files `*.toml` there, by name, as many as are shown. Raises HeadraceError where there is no such
    directory.
    """
    if not directory.is_dir():
        raise HeadraceError(f"{directory} is no directory: name the one that has the pipelines' files.")
    return [state_of(file) for file in sorted(directory.glob("*.toml"))[:PIPELINES_SHOWN_MAX]]


def state_of(file: Path) -> PipelineState:
    """The pipeline of one file."""
    bare = PipelineState(file=file, name=file.stem)
    try:
        found = tomllib.loads(_text(file))
    except (OSError, ValueError) as error:
        return replace(bare, trouble=f"{file.name} cannot be read: {error}.")
    source = _table(found, "source")
    known = replace(
        bare,
        name=str(found.get("name") or file.stem),
        kind=str(found.get("pipeline", "")),
        source=next((str(source[key]) for key in ("topic", "topicPattern", "assign") if key in source), ""),
    )
    try:
        return _looked_at(known, found)
    except (HeadraceError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return replace(known, trouble=f"How far it has come cannot be read: {str(error) or type(error).__name__}.")


def _looked_at(known: PipelineState, found: Mapping[str, Any]) -> PipelineState:
    """Raises HeadraceError, OSError and what JSON of another form leads to."""
    if known.kind == "materialise":
        return _of_table(replace(known, place=str(_table(found, "table").get("path", ""))))
    if known.kind == "replay":
        return _of_replay(replace(known, place=str(_table(found, "run").get("checkpoint", ""))))
    report = _table(found, "report")
    page = _beside(known.file, report.get("html"))
    told = _beside(known.file, report.get("json"))
    known = replace(known, place=str(told or page or ""), page=page if page is not None and page.is_file() else None)
    if told is None or not told.is_file():
        at = None if known.page is None else int(known.page.stat().st_mtime * 1000)
        return replace(known, at_ms=at)
    document = json.loads(_text(told))
    parts = document.get("partitions", ())
    problems = sum(len(each.get("problems", ())) for each in parts) if known.kind == "audit" else None
    return replace(known, at_ms=document.get("ended_ms") or int(told.stat().st_mtime * 1000), problems=problems)


def _of_table(known: PipelineState) -> PipelineState:
    objects, metas = _listed(known.place, TABLE)
    if not metas:
        return known
    shown = metas[-PIPELINE_COMMITS_SHOWN_MAX:]
    records, ends = 0, dict[tuple[str, int], int]()
    rows_of: dict[str, int] = {}
    for row in (row for meta in shown for row in _rows(objects, meta)):
        if row["kind"] == "range":
            place = (row["topic"], row["partition"])
            ends[place] = max(ends.get(place, 0), row["end_offset"])
        elif row["kind"] == "file" and row["action"] == "add":
            rows_of[row["path"]] = row["records"]
            records += row["records"]
        elif row["kind"] == "file":
            records -= rows_of.pop(row["path"], 0)
    return replace(
        known,
        at_ms=metas[-1].modified_ms,
        steps=len(metas),
        records=records if len(shown) == len(metas) else None,
        reached=[Reached(topic, partition, end) for (topic, partition), end in sorted(ends.items())],
    )


def _of_replay(known: PipelineState) -> PipelineState:
    objects, metas = _listed(known.place, REPLAY)
    if not metas:
        return known
    row = json.loads(objects.get(metas[-1].key))
    reached = [
        Reached(topic, int(partition), offset)
        for topic, offsets in sorted(row["next"].items())
        for partition, offset in offsets.items()
        if partition.isdecimal()
    ]
    return replace(known, at_ms=metas[-1].modified_ms, steps=row.get("number", -1) + 1, reached=reached)


def _listed(place: str, prefix: str) -> tuple[Objects, list[ObjectMeta]]:
    """The objects of a log, in order."""
    if not place:
        raise ValueError("its file names no place")
    objects = open_objects(place, ReadOnlyDisk())
    found = [meta for meta in objects.list(prefix) if meta.key.endswith(".json")]
    return objects, sorted(found, key=lambda meta: meta.key)


def _rows(objects: Objects, meta: ObjectMeta) -> Iterator[Mapping[str, Any]]:
    yield from (json.loads(line) for line in objects.get(meta.key).decode().splitlines())


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = found.get(name)
    return table if isinstance(table, Mapping) else {}


def _beside(file: Path, named: object) -> Path | None:
    """A report is where the pipeline ran: beside its file, where it stands there, else in this directory."""
    if not isinstance(named, str) or not named:
        return None
    beside = file.parent / named
    return beside if beside.exists() else Path(named)


def _text(file: Path) -> str:
    """Raises OSError, ValueError."""
    with file.open("rb") as opened:
        data = opened.read(PIPELINE_FILE_BYTES_SHOWN_MAX + 1)
    if len(data) > PIPELINE_FILE_BYTES_SHOWN_MAX:
        raise ValueError(f"it has more than {PIPELINE_FILE_BYTES_SHOWN_MAX} bytes")
    return data.decode()
