"""The options of ``format("headrace")``: parsed, checked against each other, and named where they are wrong.

Names and values are those of Spark's own Kafka source where it has them. An unknown, malformed or contradictory option
is refused with one sentence of advice. Makes no request to a store or a broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.limits import SPARK_REPEATS_WINDOW_MAX, SPARK_TASKS_MAX
from headrace.base.reading import INT_MAX, is_natural, json_value
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.spark.read.columns import Columns
from headrace.spark.synonyms import own_names

EARLIEST: Final = -2
LATEST: Final = -1
WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
PARTITION_BYTES: Final = 32 * 1024 * 1024
REPEAT_WINDOW: Final = 1_000_000
TOPIC_OPTIONS: Final = ("topic", "topicPattern", "assign")
STREAM_OPTIONS: Final = ("maxRecordsPerTrigger", "maxBytesPerTrigger")
BATCH_OPTIONS: Final = ("endingOffsets", "endingTimestamp", "pushFilters")
OPTIONS: Final = (
    "store",
    "bootstrap",
    *TOPIC_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    *BATCH_OPTIONS,
    "minPartitions",
    "maxBytesPerPartition",
    "includeHeaders",
    "columns",
    "failOnDataLoss",
    "dropRepeats",
    "repeatWindow",
    "mode",
    "quarantinePath",
    "isolation",
    *STREAM_OPTIONS,
)

KAFKA: Final = "kafka."
"""Stands before options of Kafka's clients, as in Spark's own source."""
SECURITY_OPTIONS: Final = tuple(KAFKA + name for name in ("security.protocol", "sasl.", "ssl."))
"""The beginnings of the names of options of security, which are Kafka's client properties."""

Offsets = Mapping[str, Mapping[int, int]]
"""Topic, partition, offset. EARLIEST and LATEST stand for the ends."""


class Bound(NamedTuple):
    """The start or end of a read, given in one of three ways."""

    rest: int
    """EARLIEST or LATEST, for partitions that the others do not name."""
    offsets: Offsets
    timestamp_ms: int | None


class Selection(NamedTuple):
    """The topics to read, given in one of three ways."""

    topics: tuple[str, ...]
    """Names (or ids, where only the store is read)."""
    pattern: str | None
    """A regular expression that matches whole names."""
    assigned: Mapping[str, tuple[int, ...]] | None
    """Only these partitions."""

    @property
    def option(self) -> str:
        """Name of the option that selects."""
        return "assign" if self.assigned is not None else "topicPattern" if self.pattern is not None else "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of ``spark.read`` or ``spark.readStream``. At least one of `store` and `bootstrap` is set."""

    store: str | None
    """URL of the store, as the broker's `durable.url`."""
    bootstrap: str | None
    security: ClientSecurity = PLAIN
    """How brokers let this side in."""
    selection: Selection
    starting: Bound
    ending: Bound
    columns: Columns
    partitions_min: int
    partition_bytes_max: int | None
    """Approximate bytes of record batches that one task reads; None: not given."""
    fail_on_loss: bool
    repeat_window: int | None
    """Number of offsets within which repeats of a record are found and left out; None: repeats are kept."""
    push_filters: bool
    """Whether a query's filters are used to read less (docs/SPARK.md says when that is safe)."""
    quarantine: str | None
    """Where corrupt ranges are written, with ``mode=PERMISSIVE``; None: they stop the job."""
    committed_only: bool
    """Whether rows of aborted transactions are left out, and what is at the last stable offset or above."""
    trigger_records_max: int | None
    trigger_bytes_max: int | None

    @property
    def task_bytes(self) -> int:
        """Approximate bytes of record batches that one task of a query reads."""
        return self.partition_bytes_max or PARTITION_BYTES


def parse_options(
    options: Mapping[str, str], *, streaming: bool | None = None, begins: str | None = None
) -> ReadOptions:
    """Parse options; their names are case-insensitive. `streaming` is None where it is not known yet. `begins` is a
    word for the start of partitions that `startingOffsets` does not name; None: Spark's default. Raises UsageError.
    """
    given, security = without_security(options)
    given = own_names(given, OPTIONS)
    if "path" in given:  # set by load(path)
        path = given.pop("path")
        if given.setdefault("store", path) != path:
            raise UsageError("load(PATH) and option store name two stores: give one of them.")
    if unknown := set(given) - {name.lower() for name in OPTIONS}:
        raise UsageError(f"There is no option '{min(unknown)}'; there are: {', '.join(OPTIONS)}.")
    _check_kind(given, streaming)
    store, bootstrap = (given.get(name, "").strip() or None for name in ("store", "bootstrap"))
    if store is None and bootstrap is None:
        raise UsageError(
            "Option store is missing: .option('store', URL) for durable history, .option('bootstrap', HOST:PORT) for "
            "what brokers have, or both."
        )
    names = given.get("columns")
    return ReadOptions(
        store=store,
        bootstrap=bootstrap,
        security=security,
        selection=_selection(given),
        starting=_bound("starting", given, begins or ("latest" if streaming else "earliest"), streaming),
        ending=_bound("ending", given, "latest", streaming),
        columns=Columns.select(
            None if names is None else [name.strip() for name in names.split(",")],
            headers=boolean("includeHeaders", given, default=False),
        ),
        partitions_min=min(positive("minPartitions", given, "tasks") or 1, SPARK_TASKS_MAX),
        partition_bytes_max=positive("maxBytesPerPartition", given, "bytes"),
        fail_on_loss=boolean("failOnDataLoss", given, default=True),
        repeat_window=_repeat_window(given),
        push_filters=boolean("pushFilters", given, default=False),
        quarantine=_quarantine(given),
        committed_only=_isolation(given),
        trigger_records_max=positive("maxRecordsPerTrigger", given, "records"),
        trigger_bytes_max=positive("maxBytesPerTrigger", given, "bytes"),
    )


def without_security(options: Mapping[str, str]) -> tuple[dict[str, str], ClientSecurity]:
    """The other options, by their names in lower case, and the security that `kafka.security.protocol`, `kafka.sasl.*`
    and `kafka.ssl.*` ask for. Raises UsageError.
    """
    given = {name.lower(): value for name, value in options.items()}
    named = {name: given.pop(name) for name in list(given) if name.startswith(SECURITY_OPTIONS)}
    return given, ClientSecurity.from_properties(named, prefix=KAFKA)


def _check_kind(given: Mapping[str, str], streaming: bool | None) -> None:
    wrong = () if streaming is None else BATCH_OPTIONS if streaming else STREAM_OPTIONS
    for name in wrong:
        if name.lower() in given:
            where, other = ("readStream", "read") if streaming else ("read", "readStream")
            raise UsageError(f"Option {name} is for spark.{other} alone: leave it out of spark.{where}.")


def _selection(given: Mapping[str, str]) -> Selection:
    named = [name for name in TOPIC_OPTIONS if given.get(name.lower(), "").strip()]
    if len(named) > 1:
        raise UsageError(f"Options {' and '.join(named)} contradict each other: give one of them.")
    if not named:
        raise UsageError("Option topic is missing: .option('topic', NAME), or topicPattern, or assign.")
    text = given[named[0].lower()].strip()
    if named[0] == "topicPattern":
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"Option topicPattern must be a regular expression; '{text:.200}': {error}.") from error
        return Selection((), text, None)
    if named[0] == "assign":
        return Selection((), None, _assigned(text))
    return Selection(tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())), None, None)


def _assigned(text: str) -> Mapping[str, tuple[int, ...]]:
    problem = UsageError(f'Option assign must be {{"topic": [0, 1]}}, not {text:.200}')
    parsed = _json_object(text, problem)
    for partitions in parsed.values():
        if not isinstance(partitions, list) or not all(type(each) is int and each >= 0 for each in partitions):
            raise problem
    if not any(parsed.values()):
        raise problem
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in parsed.items()}


def _bound(side: str, given: Mapping[str, str], word: str, streaming: bool | None) -> Bound:
    """Parses `startingOffsets` and `startingTimestamp`, or those with `ending`."""
    name, by_time = f"{side}Offsets", f"{side}Timestamp"
    offsets, timestamp = given.get(name.lower()), given.get(by_time.lower())
    if offsets is not None and timestamp is not None:
        raise UsageError(f"Options {name} and {by_time} contradict each other: give one of them.")
    if timestamp is not None:
        if not re.fullmatch(r"-?[0-9]{1,18}", timestamp.strip()):
            raise UsageError(f"Option {by_time} must be milliseconds since 1970, not '{timestamp:.50}'.")
        return Bound(LATEST, {}, int(timestamp))
    text = word if offsets is None else offsets.strip()
    if side == "starting" and streaming:
        allowed = ["earliest", "latest"]
    else:
        allowed = ["earliest" if side == "starting" else "latest"]
    if text.lower() in allowed or (streaming is None and text.lower() in WORDS):
        return Bound(WORDS[text.lower()], {}, None)
    marks = [WORDS[each] for each in allowed] if streaming is not None else list(WORDS.values())
    problem = UsageError(
        f'Option {name} must be {" or ".join(allowed)} or {{"topic": {{"0": 23, "1": {marks[0]}}}}}, not {text:.200}'
    )
    return Bound(WORDS[word], _offsets(text, marks, problem), None)


def _offsets(text: str, marks: Iterable[int], problem: UsageError) -> Offsets:
    """JSON as in Spark's Kafka source: {"topic": {"0": 23, "1": -2}}."""
    parsed = _json_object(text, problem)
    for by_partition in parsed.values():
        if not isinstance(by_partition, dict):
            raise problem
        for partition, offset in by_partition.items():
            if (
                not is_natural(partition, INT_MAX)
                or str(int(partition)) != partition
                or type(offset) is not int
                or (offset < 0 and offset not in marks)
            ):
                raise problem
    return {topic: {int(p): offset for p, offset in by_partition.items()} for topic, by_partition in parsed.items()}


def _json_object(text: str, problem: UsageError) -> dict[str, Any]:
    try:
        parsed = json_value(text)
    except ValueError as error:
        raise problem from error
    if not isinstance(parsed, dict):
        raise problem
    return parsed


def _repeat_window(given: Mapping[str, str]) -> int | None:
    window = positive("repeatWindow", given, "offsets")
    if not boolean("dropRepeats", given, default=False):
        if window is not None:
            raise UsageError("Option repeatWindow needs dropRepeats=true: without it, no repeat is looked for.")
        return None
    if window is not None and window > SPARK_REPEATS_WINDOW_MAX:
        raise UsageError(f"Option repeatWindow must be {SPARK_REPEATS_WINDOW_MAX} offsets at most, not {window}.")
    return window or REPEAT_WINDOW


def _quarantine(given: Mapping[str, str]) -> str | None:
    mode, path = given.get("mode", "FAILFAST").strip().upper(), given.get("quarantinepath", "").strip()
    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise UsageError(f"Option mode must be FAILFAST or PERMISSIVE, not '{mode:.50}'.")
    if mode == "PERMISSIVE" and not path:
        raise UsageError("With mode=PERMISSIVE, option quarantinePath must say where corrupt ranges are written.")
    if mode == "FAILFAST" and path:
        raise UsageError("Option quarantinePath needs mode=PERMISSIVE: without it, corrupt data stops the job.")
    return path or None


def _isolation(given: Mapping[str, str]) -> bool:
    isolation = given.get("isolation", "read_committed").strip().lower()
    if isolation not in ("read_committed", "read_uncommitted"):
        raise UsageError(f"Option isolation must be read_committed or read_uncommitted, not '{isolation:.50}'.")
    return isolation == "read_committed"


def boolean(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    """The value in `given` (by lower-case name). Raises UsageError."""
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"Option {name} must be true or false, not '{text:.50}'.")
    return text == "true"


def positive(name: str, given: Mapping[str, str], unit: str) -> int | None:
    """The value; None where it is not given. Raises UsageError."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) == 0:
        raise UsageError(f"Option {name} must be a positive number of {unit}, not '{text:.50}'.")
    return int(text)
