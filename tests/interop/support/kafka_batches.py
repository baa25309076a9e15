"""Apache Kafka's own classes read record batches, all in one Java process (tools/Batches.java).

They are its consumer, its record classes, its cleaner's filter and DumpLogSegments.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.interop.support.asking import asked
from tools import kafka_jars

PROGRAM: Final = Path(__file__).parents[1] / "tools" / "Batches.java"
Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[str, int, int, int, int, bytes | None, bytes | None, Headers]
"""Topic, partition, offset, time in ms, its type, key, value, headers."""


class JavaBatch(NamedTuple):
    """A batch's header, as Java tells it."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    codec: int
    timestamp_type: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: int
    is_control: int
    has_horizon: int
    records: int


class JavaRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class CannotReadError(AssertionError):
    """Java's own classes could not; what they said."""


class KafkaBatches:
    """One Java process, as a context manager."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        *java, main = kafka_jars.compiled(PROGRAM, kafka_jars.class_path())
        self._command = [*java, "-Xmx2g", main]

    def __enter__(self) -> Self:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._put = self._ends.enter_context(asked(process))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.close()

    def _ask(self, *words: str) -> str:
        how, _, text = self._put("\t".join(words)).partition(" ")
        said = base64.b64decode(text).decode()
        if how != "said":
            raise CannotReadError(said[-4000:])
        return said

    def walk(self, file: Path) -> list[tuple[JavaBatch, list[JavaRecord]]]:
        """Every batch of a file, unpacked. Raises CannotReadError."""
        found: list[tuple[JavaBatch, list[JavaRecord]]] = []
        for kind, *words in (line.split("\t") for line in self._ask("walk", str(file)).splitlines()):
            if kind == "batch":
                found.append((JavaBatch(*map(int, words)), []))
            else:
                offset, time, key, value, headers = words
                found[-1][1].append(JavaRecord(int(offset), int(time), data(key), data(value), told_headers(headers)))
        return found

    def clean(self, file: Path, into: Path, *, now_ms: int, retention_ms: int, kept: Collection[int]) -> bytes:
        """The output of Kafka's cleaner where these offsets stay, and the batches that lose all records."""
        offsets = ",".join(map(str, kept))
        self._ask("clean", str(file), str(into), str(now_ms), str(retention_ms), offsets)
        return into.read_bytes()

    def consumed(self, bootstrap: str, topics: Sequence[str]) -> list[Row]:
        """All that Java's consumer gives out of these topics, in the order of topic, partition and offset."""
        rows: list[Row] = []
        for line in self._ask("consume", bootstrap, *topics).splitlines():
            _, topic, partition, offset, time, kind, key, value, headers = line.split("\t")
            place = (topic, int(partition), int(offset), int(time), int(kind))
            rows.append((*place, data(key), data(value), told_headers(headers)))
        return sorted(rows, key=lambda row: row[:3])

    def dump(self, files: Iterable[Path], *options: str) -> str:
        """The output of DumpLogSegments for them."""
        return self._ask("dump", *options, "--files", ",".join(map(str, files)))


def data(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


def told_headers(text: str) -> Headers:
    pairs = (each.split("=") for each in text.split(",")) if text else ()
    return tuple((bytes.fromhex(name).decode(), data(value)) for name, value in pairs)
