"""The specification of a pipeline: a TOML file, checked, and named where it is wrong. Imports neither Spark nor Arrow.

Promises that an unknown, missing or malformed key is reported in one sentence with its section.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace.base.errors import UsageError
from headrace.base.limits import (
    PIPELINE_BATCH_BYTES,
    PIPELINE_FILE_BYTES,
    PIPELINE_NICE,
    PIPELINE_NICE_MAX,
    PIPELINE_TASK_BYTES_MAX,
    PROCESSORS_SPARED_MAX,
    REPLAY_BATCH_BYTES,
    STATISTICS_TOP_MAX,
)
from headrace.spark.options import KAFKA, SECURITY_OPTIONS, STREAM_OPTIONS, ReadOptions, parse_options
from headrace.spark.synonyms import hint
from headrace.spark.write.sink import WriteOptions, parse_write_options

MATERIALISE: Final = "materialise"
AUDIT: Final = "audit"
STATISTICS: Final = "statistics"
REPLAY: Final = "replay"
COMPACT: Final = "compact"
KINDS: Final = (MATERIALISE, AUDIT, STATISTICS, REPLAY, COMPACT)
KEEP: Final = "keep"
PLACINGS: Final = ("key", KEEP)
DECODERS: Final = ("binary", "string", "json")
FORMATS: Final = ("parquet", "delta", "iceberg")
COMPRESSIONS: Final = ("none", "snappy", "gzip", "lz4", "zstd")
SOURCE: Final = (
    "store",
    "bootstrap",
    "topic",
    "topicPattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "includeHeaders",
    "failOnDataLoss",
    "mode",
    "quarantinePath",
    "isolation",
    "maxBytesPerPartition",
    *STREAM_OPTIONS,
)
"""Options of ``spark.readStream.format("headrace")`` that a pipeline accepts."""
SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    MATERIALISE: {
        "source": SOURCE,
        "decode": ("key", "value", "schema", "function"),
        "columns": (),
        "table": ("path", "format", "catalog", "identifier", "partition_by", "file_bytes", "compression", "compact"),
        "run": ("continuous", "poll_seconds"),
        "spark": ("master", "nice", "spare_processors", "settings"),
    },
    AUDIT: {
        "source": ("store", "bootstrap", "topic", "topicPattern", "assign"),
        "report": ("html", "json"),
        "spark": ("master", "nice", "spare_processors", "settings"),
    },
    COMPACT: {
        "source": ("store", "bootstrap", "topic", "topicPattern", "assign"),
        "run": ("compare",),
        "spark": ("master", "nice", "spare_processors", "settings"),
    },
    STATISTICS: {
        "source": (
            *("store", "bootstrap", "topic", "topicPattern", "assign", "startingOffsets", "endingOffsets"),
            *("startingTimestamp", "endingTimestamp", "failOnDataLoss", "maxBytesPerPartition"),
        ),
        "report": ("html", "json", "top"),
        "spark": ("master", "nice", "spare_processors", "settings"),
    },
    REPLAY: {
        "source": tuple(name for name in SOURCE if name != "includeHeaders"),
        "target": (
            *("bootstrap", "topic", "partition", "identity", "compression", "batchBytes", "deliveryTimeoutMs"),
            "delivery",
        ),
        "transform": ("function",),
        "run": ("checkpoint", "records_per_second", "mb_per_second", "continuous", "poll_seconds"),
        "spark": ("master", "nice", "spare_processors", "settings"),
    },
}
"""The sections of each kind, with their keys. An empty tuple: any key."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,98}[A-Za-z0-9._-])?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How keys and values become columns."""

    key: str = "binary"
    value: str = "binary"
    schema: str | None = None
    """Schema of JSON values, as Spark DDL."""
    function: str | None = None
    """``module:name`` of a function from DataFrame to DataFrame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOf:
    """The Spark session."""

    master: str = "local[*]"
    nice: int = PIPELINE_NICE
    """Priority (nice(1)) of a local session, so that brokers on this machine go first."""
    spare_processors: int = 0
    """Processors that a local session leaves to the brokers alone."""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialise:
    """Writes topics into a table."""

    name: str
    source: ReadOptions
    path: str
    """Place of the table: a directory, or a store's URL."""
    format: str = "parquet"
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Iceberg's catalog, as pyiceberg's properties, and ``name``."""
    identifier: str = ""
    """The table's name in the catalog: ``namespace.name``."""
    decode: Decode = Decode()
    columns: Mapping[str, str] = field(default_factory=dict)
    """Additional columns, by SQL expressions."""
    partition_by: tuple[str, ...] = ()
    file_bytes: int = PIPELINE_FILE_BYTES
    compression: str = "zstd"
    compact: bool = True
    continuous: bool = False
    poll_seconds: float = 1.0
    spark: SparkOf = SparkOf()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Proves all history."""

    name: str
    source: ReadOptions
    html: str | None = None
    json: str | None = None
    spark: SparkOf = SparkOf()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts topics."""

    name: str
    source: ReadOptions
    html: str | None = None
    json: str | None = None
    top: int = 20
    """Number of keys that are named for each topic."""
    spark: SparkOf = SparkOf()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Replays topics into another one."""

    name: str
    source: ReadOptions
    target: WriteOptions
    checkpoint: str
    """Where its progress is kept: a directory, or a store's URL."""
    keeps_partitions: bool = False
    """Whether a record goes to the partition with its source partition's number, not to its key's partition."""
    function: str | None = None
    records_per_second: float | None = None
    bytes_per_second: float | None = None
    continuous: bool = False
    poll_seconds: float = 1.0
    spark: SparkOf = SparkOf()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """Merges small durable segments."""

    name: str
    source: ReadOptions
    """Has `store` and `bootstrap`."""
    compare: bool = True
    """Whether Spark reads the compacted offsets, before and after."""
    spark: SparkOf = SparkOf()


Spec: TypeAlias = Materialise | Audit | Statistics | Replay | Compact


def load(path: str) -> Spec:
    """Load a file. Raises UsageError."""
    try:
        return parse(tomllib.loads(Path(path).read_text()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}.") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parse(data: Mapping[str, Any]) -> Spec:
    """Parse a file's content. Raises UsageError."""
    kind, name = data.get("pipeline"), data.get("name")
    if kind not in KINDS:
        raise UsageError(f"Key pipeline must be one of {', '.join(KINDS)}, not {kind!r:.50}.")
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(f"Key name must be a name of letters, digits, blanks, '.', '_' and '-', not {name!r:.50}.")
    sections = SECTIONS[kind]
    if unknown := set(data) - {"pipeline", "name", *sections}:
        raise UsageError(f"There is no section '{min(unknown)}'; there are: {', '.join(sections)}.")
    found = {section: _Section(section, data.get(section, {}), keys) for section, keys in sections.items()}
    spark = _spark(found["spark"])
    if kind == AUDIT:
        report = found["report"]
        source = _source(found["source"], {})
        return Audit(name=name, source=source, html=report.text("html"), json=report.text("json"), spark=spark)
    if kind == COMPACT:
        return _compact(name, found, spark)
    if kind == STATISTICS:
        report = found["report"]
        source, top = _source(found["source"], {}, streaming=False), report.number("top", 20, STATISTICS_TOP_MAX)
        return Statistics(
            name=name, source=source, html=report.text("html"), json=report.text("json"), top=top, spark=spark
        )
    return _replay(name, found, spark) if kind == REPLAY else _materialise(name, found, spark)


def _materialise(name: str, found: Mapping[str, _Section], spark: SparkOf) -> Materialise:
    table, run = found["table"], found["run"]
    path = table.text("path")
    if path is None:
        raise UsageError("Key path of section [table] is missing: the directory or store that the table is to be in.")
    kind = table.word("format", FORMATS, "parquet")
    identifier = table.text("identifier") or ""
    named = "catalog" in table.given and re.fullmatch(r"[^.]+(\.[^.]+)+", identifier) is not None
    if (kind == "iceberg" and not named) or (kind != "iceberg" and {"catalog", "identifier"} & set(table.given)):
        raise UsageError(
            'Keys format = "iceberg", catalog and identifier ("namespace.name") of section [table] need one another.'
        )
    return Materialise(
        name=name,
        source=_source(found["source"], _portions(found["source"], PIPELINE_BATCH_BYTES)),
        path=path,
        format=kind,
        catalog=table.pairs("catalog"),
        identifier=identifier,
        decode=_decode(found["decode"]),
        columns=found["columns"].texts(),
        partition_by=table.names("partition_by"),
        file_bytes=table.number("file_bytes", PIPELINE_FILE_BYTES, PIPELINE_TASK_BYTES_MAX),
        compression=table.word("compression", COMPRESSIONS, "zstd"),
        compact=table.flag("compact", True),
        continuous=run.flag("continuous", False),
        poll_seconds=run.seconds("poll_seconds", 1.0),
        spark=spark,
    )


def _compact(name: str, found: Mapping[str, _Section], spark: SparkOf) -> Compact:
    source = _source(found["source"], {}, streaming=False)
    if source.store is None or source.bootstrap is None:
        raise UsageError(
            "Section [source] needs store and bootstrap: brokers compact, and the store is read to prove it."
        )
    return Compact(name=name, source=source, compare=found["run"].flag("compare", True), spark=spark)


def _replay(name: str, found: Mapping[str, _Section], spark: SparkOf) -> Replay:
    source, target, run = found["source"], found["target"], found["run"]
    checkpoint = run.text("checkpoint")
    if checkpoint is None:
        raise UsageError("Key checkpoint of section [run] is missing: the directory that is to hold how far it is.")
    if target.text("topic") is None:
        raise UsageError("Key topic of section [target] is missing: the topic that is to be written.")
    options = {name: value for name, value in target.words().items() if name not in ("partition", "identity")}
    identity = target.flag("identity", True)
    megabytes = run.rate("mb_per_second")
    return Replay(
        name=name,
        source=_source(source, {**_portions(source, REPLAY_BATCH_BYTES), "includeHeaders": "true"}),
        target=parse_write_options({**options, "includeIdentity": str(identity)}, streaming=True),
        checkpoint=checkpoint,
        keeps_partitions=target.word("partition", PLACINGS, "key") == KEEP,
        function=_function(found["transform"]),
        records_per_second=run.rate("records_per_second"),
        bytes_per_second=None if megabytes is None else megabytes * 1e6,
        continuous=run.flag("continuous", False),
        poll_seconds=run.seconds("poll_seconds", 1.0),
        spark=spark,
    )


def _portions(section: _Section, size: int) -> dict[str, str]:
    """Portions of this many bytes, unless the section says otherwise."""
    return {} if "maxRecordsPerTrigger" in section.given else {"maxBytesPerTrigger": str(size)}


def _source(section: _Section, defaults: Mapping[str, str], *, streaming: bool = True) -> ReadOptions:
    """Parse the section. Partitions that it gives no beginning are read from their start."""
    return parse_options({**defaults, **section.words()}, streaming=streaming, begins="earliest")


def _decode(section: _Section) -> Decode:
    value, schema = section.word("value", DECODERS, "binary"), section.text("schema")
    if (value == "json") != (schema is not None):
        raise UsageError('Keys value = "json" and schema of section [decode] need each other: give both, or neither.')
    return Decode(
        key=section.word("key", DECODERS[:2], "binary"), value=value, schema=schema, function=_function(section)
    )


def _function(section: _Section) -> str | None:
    function = section.text("function")
    if function is not None and not re.fullmatch(r"[\w.]+:[\w.]+", function):
        raise section.wrong("function", "module:name of a function from DataFrame to DataFrame")
    return function


def _spark(section: _Section) -> SparkOf:
    return SparkOf(
        master=section.text("master") or "local[*]",
        nice=section.number("nice", PIPELINE_NICE, PIPELINE_NICE_MAX, least=0),
        spare_processors=section.number("spare_processors", 0, PROCESSORS_SPARED_MAX, least=0),
        settings=section.pairs("settings"),
    )


def _flat(given: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The keys of a section, where `kafka.ssl.ca.location = "..."` is tables within a table."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        is_kafkas = f"{before}{key}.".startswith(KAFKA)
        if is_kafkas and isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[before + key] = value
    return found


class _Section:
    """One table of the file. Its methods raise UsageError where a key's value is wrong."""

    def __init__(self, name: str, given: Any, keys: tuple[str, ...]) -> None:
        self.name = name
        if not isinstance(given, Mapping):
            raise UsageError(f"Key {name} must be a section: [{name}].")
        self.given: Mapping[str, Any] = _flat(given) if "bootstrap" in keys else given
        unknown = {key for key in self.given if key not in keys and not key.startswith(SECURITY_OPTIONS)}
        if keys and unknown:
            called = hint(min(unknown))
            raise UsageError(f"Section [{name}] has no key '{min(unknown)}'{called}; it has: {', '.join(keys)}.")

    def wrong(self, key: str, wanted: str) -> UsageError:
        return UsageError(f"Key {key} of section [{self.name}] must be {wanted}, not {self.given.get(key)!r:.100}.")

    def text(self, key: str) -> str | None:
        value = self.given.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, "a text")
        return value

    def words(self) -> dict[str, str]:
        """The values in the form of options."""
        found = {}
        for key, value in self.given.items():
            if not isinstance(value, str | bool | int):
                if key.startswith(SECURITY_OPTIONS):  # it may be a secret
                    raise UsageError(f"Key {key} of section [{self.name}] must be a text, a number or true or false.")
                raise self.wrong(key, "a text, a number or true or false")
            found[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def texts(self) -> Mapping[str, str]:
        for key, value in self.given.items():
            if not isinstance(value, str) or not value.strip():
                raise self.wrong(key, "a text")
        return dict(self.given)

    def pairs(self, key: str) -> Mapping[str, str]:
        """A table inside the section."""
        value = self.given.get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a table of names and values, { a = 1 }")
        return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}

    def word(self, key: str, words: tuple[str, ...], default: str) -> str:
        value = self.given.get(key, default)
        if value not in words:
            raise self.wrong(key, f"one of {', '.join(words)}")
        return str(value)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise self.wrong(key, 'a list of columns, ["day"]')
        if len(set(value)) < len(value):
            raise self.wrong(key, "a list that names each column once")
        return tuple(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.given.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def number(self, key: str, default: int, most: int, *, least: int = 1) -> int:
        value = self.given.get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a number from {least} to {most}")
        return value

    def rate(self, key: str) -> float | None:
        value = self.given.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 < value <= 1e12):
            raise self.wrong(key, "a number above 0")
        return None if value is None else float(value)

    def seconds(self, key: str, default: float) -> float:
        value = self.given.get(key, default)
        if type(value) not in (int, float) or not 0 < value <= 86_400:
            raise self.wrong(key, "a number of seconds, above 0 and at most 86400")
        return float(value)
