"""Repeats a table's commits in the log of a table format, each once: Delta or Iceberg beside Headrace's own.

Headrace's commit decides, since it is there first, whole or not at all. The format's commit holds its version, and is
refused if that version is there already. So the next run publishes what a run that died between the two left. Two runs
that publish at once add each file once. Promises that versions are published in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from headrace.base.errors import UsageError
from headrace.base.limits import PIPELINE_PUBLISH_TRIES_MAX
from headrace.spark.pipelines.spec import Materialise
from headrace.spark.pipelines.tables.progress import APPEND, Commit, File
from headrace.storage.objects import directory_of


class TableFormat(Protocol):
    """A table of such a format in the table's own directory."""

    def version(self) -> int:
        """The last of Headrace's versions that it holds; -1 for none. Reads the table again."""

    def check(self, schema: Any) -> None:
        """Raises UsageError where the table, as `version` has read it, would not accept these columns. Headrace's own
        log cannot take back a commit.
        """

    def check_files(self, files: Sequence[File]) -> None:
        """Raises UsageError where the format cannot represent the files' values."""

    def publish(self, commit: Commit) -> None:
        """Add its files as one commit, with its version. Raises TakenError where another run committed meanwhile."""


class TakenError(Exception):
    """Another run committed to the table since it was read."""


def place_of(path: str) -> str:
    """The table's place in the form that other programs accept: a directory's absolute path, or a store's URL, without
    a slash at its end. Raises UsageError.
    """
    return str(directory_of(path)) if urlsplit(path).scheme in ("", "file") else path.rstrip("/")


def refused(kind: str, error: Exception) -> UsageError:
    """The error for refused columns."""
    reason = str(error).partition("\n")[0].rstrip(".")
    return UsageError(
        f"{kind} does not take the columns of the pipeline: {reason}. Let section [columns] give that one another type."
    )


def table_format(spec: Materialise) -> TableFormat | None:
    """The table format; None for plain Parquet. Raises UsageError where its package is missing."""
    try:
        if spec.format == "delta":
            from headrace.spark.pipelines.tables.delta import DeltaFormat

            return DeltaFormat(spec)
        if spec.format == "iceberg":
            from headrace.spark.pipelines.tables.iceberg import IcebergFormat

            return IcebergFormat(spec)
    except ImportError as error:
        raise UsageError(
            f"Key format = \"{spec.format}\" of section [table] needs a package: pip install 'headrace[{spec.format}]'."
        ) from error
    return None


def publish(table: TableFormat, commits: Iterable[Commit]) -> None:
    """Publish the commits that the table does not hold yet, in order. Raises TakenError after too many conflicts."""
    done = table.version()
    for commit in commits:
        if commit.action != APPEND or not commit.added:
            continue
        for left in reversed(range(PIPELINE_PUBLISH_TRIES_MAX)):
            if commit.version <= done:
                break
            try:
                table.publish(commit)
                done = commit.version
            except TakenError:
                if not left:
                    raise
                done = table.version()
