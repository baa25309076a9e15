"""An Iceberg table over the table's files: each commit is a snapshot, and a table property holds its version.

Promises that Iceberg holds a version once. Property and snapshot change in one transaction, and the catalog refuses it
if the table has changed since it was read. The table has the retries of pyiceberg switched off, since they would add
the files to a newer state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationError
from pyiceberg.table import Table

from headrace.base.errors import UsageError
from headrace.spark.pipelines.spec import Materialise
from headrace.spark.pipelines.tables.progress import Commit, File
from headrace.spark.pipelines.tables.publishing import TakenError, place_of, refused
from headrace.spark.pipelines.tables.reading import arrow_schema_of

RETRIES = "commit.retry.num-retries"


class IcebergFormat:
    """See the module."""

    def __init__(self, spec: Materialise) -> None:
        """Raises UsageError where the catalog cannot be opened."""
        place = place_of(spec.path)
        self._url = f"file://{place}" if place.startswith("/") else place  # unencoded: pyiceberg decodes nothing
        self._name = spec.identifier
        self._property = f"headrace.{spec.name}.version"
        try:
            self._catalog: Catalog = load_catalog(spec.catalog.get("name", "default"), **spec.catalog)
        except Exception as error:
            raise UsageError(f"The catalog of section [table] cannot be opened: {error}.") from error
        self._table: Table | None = None

    def version(self) -> int:
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None
            return -1
        return int(self._table.properties.get(self._property, -1))

    def check(self, schema: Any) -> None:
        try:
            if self._table is None:
                self._catalog._convert_schema_if_needed(schema)
            else:
                self._table.update_schema().union_by_name(schema)  # this changes nothing yet
        except Exception as error:  # errors of several classes with no common base
            raise refused("Iceberg", error) from error

    def check_files(self, files: Sequence[File]) -> None:
        """Accepts all files: Iceberg reads the values from the files themselves."""

    def publish(self, commit: Commit) -> None:
        schema = arrow_schema_of(commit.columns)
        try:
            table = self._ready(schema, commit)
            if int(table.properties.get(self._property, -1)) >= commit.version:  # a commit in `_ready` has refreshed it
                raise TakenError(f"Another run added version {commit.version} to '{self._name}' meanwhile.")
            with table.transaction() as transaction:
                transaction.set_properties({self._property: str(commit.version)})
                transaction.add_files(
                    [f"{self._url}/{file.path}" for file in commit.added],
                    snapshot_properties={"headrace.pipeline": commit.pipeline, "headrace.version": str(commit.version)},
                    check_duplicate_files=False,  # the version ensures that
                )
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise TakenError(str(error)) from error
        self._table = self._catalog.load_table(self._name)

    def _ready(self, schema: Any, commit: Commit) -> Table:
        """The table in the state that was read, with the columns of the commit. Raises CommitFailedException."""
        table = self._table
        if table is None:
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            with (
                self._catalog.create_table_transaction(
                    self._name, schema=schema, location=self._url, properties={RETRIES: "0"}
                ) as creating,
                creating.update_spec() as spec,
            ):
                for name in commit.partition_by:
                    spec.add_identity(name)
            table = self._catalog.load_table(self._name)
        if table.properties.get(RETRIES) != "0":
            with table.transaction() as transaction:
                transaction.set_properties({RETRIES: "0"})
        try:
            with table.update_schema() as update:
                update.union_by_name(schema)
        except ValidationError as error:
            raise UsageError(f"Iceberg does not take the columns of '{self._name}': {error}.") from error
        return table
