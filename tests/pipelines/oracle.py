"""The content of a table, read with pyarrow alone, by the commits' lines and no code of the project."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyarrow import parquet

from tests.spark.world import Row


def listed(path: Path) -> list[str]:
    """The files that commits add and do not remove."""
    names: list[str] = []
    commits = sorted((path / "_headrace_progress").glob("*.json"))
    assert [int(commit.stem) for commit in commits] == list(range(len(commits))), commits
    for commit in commits:
        for row in map(json.loads, commit.read_text().splitlines()):
            if row["kind"] == "file" and row["action"] == "remove":
                names.remove(row["path"])
        for row in map(json.loads, commit.read_text().splitlines()):
            if row["kind"] == "file" and row["action"] == "add":
                assert row["path"] not in names, "a file is added once"
                names.append(row["path"])
                assert (path / row["path"]).stat().st_size == row["bytes"]
                assert parquet.read_metadata(path / row["path"]).num_rows == row["records"]
    return names


def delta_listed(path: Path) -> list[str]:
    """The files of a Delta table, by its log's lines alone."""
    names: list[str] = []
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                names.append(unquote(action["add"]["path"]))
            if "remove" in action:
                names.remove(unquote(action["remove"]["path"]))
    return names


def iceberg_listed(path: Path | str, catalog: dict[str, str], identifier: str) -> list[str]:
    """The files of an Iceberg table at a directory or URL, by its manifests."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = load_catalog("default", **catalog).load_table(identifier)
    except NoSuchTableError:  # a run died before it was made
        return []
    found = table.inspect.files().column("file_path").to_pylist()
    root = path if isinstance(path, str) and "://" in path else Path(path).as_uri()
    return [name.removeprefix(f"{root}/") for name in found]


def rows(path: Path, names: list[str] | None = None) -> Iterator[dict[str, Any]]:
    for name in listed(path) if names is None else names:
        with parquet.ParquetFile(path / name) as file:  # by itself: no columns from its directory's name
            yield from file.read().to_pylist()


def consumer_rows(path: Path, names: list[str] | None = None) -> list[Row]:
    """As `tests.spark.world.consumed` gives them."""
    found: list[Row] = []
    for row in rows(path, names):
        headers = tuple((each["key"], each["value"]) for each in row["headers"])
        time = round(row["timestamp"].timestamp() * 1000)
        place = (row["topic"], row["partition"], row["offset"])
        found.append((*place, time, row["timestampType"], row["key"], row["value"], headers))
    return sorted(found, key=lambda row: row[:3])


def differences(found: Sequence[Row], wanted: Sequence[Row]) -> list[str]:
    """Between a table and what a consumer got; empty where each record is there once."""
    places = [row[:3] for row in found]
    twice = sorted({place for place in places if places.count(place) > 1}) if len(set(places)) < len(places) else []
    told = [f"{place} is there {places.count(place)} times" for place in twice[:10]]
    there = {row[:3]: row for row in found}
    known = {row[:3]: row for row in wanted}
    told += [f"{place} is missing" for place in sorted(set(known) - set(there))[:10]]
    told += [f"{place} was never produced" for place in sorted(set(there) - set(known))[:10]]
    told += [f"{place} is {there[place]}, not {row}" for place, row in known.items() if there.get(place, row) != row][
        :5
    ]
    return told
