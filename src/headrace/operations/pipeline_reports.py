"""More of a pipeline for a page: its table's newest commits, and what the last report found and drew.

Promises: it reads, and changes nothing. It reads boundedly many objects and bytes. Of a report's page only the pictures
are taken that are inside it. All of it blocks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.limits import CONSOLE_PIPELINE_COMMITS_MAX, CONSOLE_REPORT_BYTES_MAX
from headrace.operations.pipelines import TABLE
from headrace.storage.disk import ReadOnlyDisk
from headrace.storage.objects import open_objects

PLOTS_MAX: Final = 20
_PICTURE: Final = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")


class Plot(NamedTuple):
    """A picture of a report."""

    title: str
    source: str
    """A `data:` address of a PNG."""

    @property
    def digest(self) -> str:
        """A name for it, which is another picture's never."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:32]

    @property
    def png(self) -> bytes:
        """Its bytes."""
        return base64.b64decode(self.source.partition(",")[2] + "==")


class Run(NamedTuple):
    """One commit of a table."""

    version: int
    action: str
    """begin, append or compact."""
    time_ms: int
    records: int
    """Of the files that it added."""
    bytes: int


def runs_of(place: str) -> list[Run]:
    """The newest commits of the table there, the newest first. Raises HeadraceError, OSError."""
    objects = open_objects(place, ReadOnlyDisk())
    keys = sorted(meta.key for meta in objects.list(TABLE) if meta.key.endswith(".json"))
    found = []
    for key in reversed(keys[-CONSOLE_PIPELINE_COMMITS_MAX:]):
        try:
            found.append(_run([json.loads(line) for line in objects.get(key).decode().splitlines()]))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptData(f"{key} is no commit of a table ({error!r}).") from error
    return found


def _run(rows: Sequence[Mapping[str, Any]]) -> Run:
    added = [row for row in rows if row["kind"] == "file" and row["action"] == "add"]
    return Run(
        version=int(rows[0]["version"]),
        action=str(rows[0]["action"]),
        time_ms=int(rows[0]["time_ms"]),
        records=sum(int(row["records"]) for row in added),
        bytes=sum(int(row["bytes"]) for row in added),
    )


def problems_in(report: Path) -> list[str]:
    """The sentences of an audit's report in JSON; none where it has none. Raises OSError, ValueError."""
    document = json.loads(_text(report))
    parts = document.get("partitions") if isinstance(document, dict) else None
    found = []
    for each in parts if isinstance(parts, list) else ():
        problems = each.get("problems") if isinstance(each, dict) else None
        found += [str(one) for one in problems] if isinstance(problems, list) else []
    return found


def plots_in(page: Path) -> list[Plot]:
    """The pictures of a report's page. Raises OSError, ValueError."""
    return plots_of(_text(page))


def plots_of(text: str) -> list[Plot]:
    """The pictures that are inside a page."""
    reader = _Pictures()
    reader.feed(text)
    return reader.found[:PLOTS_MAX]


def _text(file: Path) -> str:
    if file.stat().st_size > CONSOLE_REPORT_BYTES_MAX:
        raise ValueError(f"{file.name} has more than {CONSOLE_REPORT_BYTES_MAX} bytes")
    return file.read_text(encoding="utf-8")


class _Pictures(HTMLParser):
    """Takes PNG pictures out of a page, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Plot] = []

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        source = told.get("src") or ""
        if tag == "img" and _PICTURE.fullmatch(source):
            self.found.append(Plot(told.get("alt") or "A picture of the report", source))
