"""Records whose keys and values are decoded by their schemas, and masked then.

Promises:
- Decoded or not, a record is masked before anybody gets it. Bytes that are not decoded are masked as if there were no
  schemas. Nothing is told of them where a mask covers them: not even the id that they seem to have.
- One page waits for a registry, and for values that cannot be decoded, within bounds for all of its records together.

The first five bytes of a value may be Confluent's header: a zero, and the schema's id. Bytes without one, or with an id
that nobody knows, are read by the topic's own file. Bytes that are JSON as they stand are left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.base.limits import (
    DECODED_BYTES_MAX,
    DECODING_FAILURES_MAX,
    SCHEMA_ASKS_MAX,
    SCHEMA_REGISTRY_MS_MAX,
)
from headrace.base.reading import json_value
from headrace.operations.masking import KEY, VALUE, Mask
from headrace.operations.schemas.decoder import Decoder, DecoderError, Job, Outcome, Result
from headrace.operations.schemas.files import Files
from headrace.operations.schemas.schema import AVRO, JSON, Schema
from headrace.wire.records import Record

if TYPE_CHECKING:
    from headrace.operations.schemas.registry import Registry

HEADER_BYTES: Final = 5
TURN_BYTES: Final = 64 * 1024
"""Bytes of JSON that are masked in one turn of the loop."""
OF_KEYS: Final = "-key"
"""Behind a topic's name, in the name of the file for its keys."""


class Told(NamedTuple):
    """The schemas of a record's key and value, in words for people. Empty: there is nothing to tell."""

    key: str = ""
    value: str = ""


NOTHING_TOLD: Final = Told()


class Decoded(NamedTuple):
    """A record as it is shown."""

    record: Record
    """Decoded and masked."""
    raw: Record
    """Its bytes as they are stored, masked."""
    told: Told = NOTHING_TOLD


class _Piece:
    """A key or value on its way."""

    def __init__(self, at: int, name: str, data: bytes) -> None:
        self.at = at
        self.name = name
        self.data = data
        self.tries: list[Job] = []
        self.json: bytes | None = None
        self.told = ""

    @property
    def schema_id(self) -> int | None:
        """The id in its first bytes, if they may be Confluent's header."""
        if len(self.data) < HEADER_BYTES or self.data[0] != 0:
            return None
        return int.from_bytes(self.data[1:HEADER_BYTES], "big")


class Schemas:
    """The sources of schemas, and the decoder, that all pages share."""

    def __init__(self, registry: Registry | None, files: Files | None, *, decoder: Decoder | None = None) -> None:
        self.registry = registry
        self.files = files
        self.decoder = decoder or Decoder()

    def of(self, topic: str) -> Decoding:
        """The decoding of this topic's records for one page."""
        return Decoding(self, topic)

    async def close(self) -> None:
        await self.decoder.close()


class Decoding:
    """The decoding for one page."""

    def __init__(self, schemas: Schemas, topic: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._schemas = schemas
        self._topic = topic
        self._clock = clock
        self._names: frozenset[str] | None = None
        self._own: dict[str, Schema] = {}
        """Schemas of files by their names."""
        self._ms_left: float = SCHEMA_REGISTRY_MS_MAX
        self._asks_left = SCHEMA_ASKS_MAX
        self._failures_left = DECODING_FAILURES_MAX
        self._troubles: dict[str, None] = {}

    @property
    def troubles(self) -> list[str]:
        """The reasons, in sentences, for which some bytes are not decoded."""
        return list(self._troubles)

    async def read(self, records: Sequence[Record], mask: Mask) -> list[Decoded]:
        """These records as they are shown."""
        pieces = [
            _Piece(at, name, data)
            for at, record in enumerate(records)
            for name, data in ((KEY, record.key), (VALUE, record.value))
            if data and len(data) <= DECODED_BYTES_MAX and not mask.hides(name)
        ]
        await self._find(pieces)
        await self._decode([piece for piece in pieces if piece.json is None and piece.tries])
        of_record: dict[int, dict[str, _Piece]] = {}
        for piece in pieces:
            of_record.setdefault(piece.at, {})[piece.name] = piece
        found, bytes_ = list[Decoded](), 0
        for at, record in enumerate(records):
            of_it = of_record.get(at, {})
            found.append(_decoded(record, of_it, mask))
            bytes_ += sum(len(piece.json or b"") for piece in of_it.values())
            if bytes_ > TURN_BYTES:  # a mask looks long at it
                bytes_ = 0
                await asyncio.sleep(0)
        return found

    # the schemas of bytes

    async def _find(self, pieces: Iterable[_Piece]) -> None:
        pieces = list(pieces)
        if self._names is None:
            self._names = await self._listed()
        await self._ask(dict.fromkeys(piece.schema_id for piece in pieces if piece.schema_id is not None))
        for piece in pieces:
            if (schema_id := piece.schema_id) is not None:
                self._by_id(piece, schema_id, await self._known(schema_id))
            name = self._topic + (OF_KEYS if piece.name == KEY else "")
            if piece.json is None and name in self._names and not _is_json(piece.data):
                self._try(piece, await self._file(name), piece.data)

    def _by_id(self, piece: _Piece, schema_id: int, schema: Schema | None) -> None:
        body = piece.data[HEADER_BYTES:]
        registry = self._schemas.registry
        if schema is None:
            if registry is not None and registry.is_unknown(schema_id):
                piece.told = f"The registry knows no schema {schema_id}."
        elif schema.kind == JSON:
            if _is_json(body, any_value=True):
                piece.json, piece.told = body, f"Read with {schema.told}."
            else:
                piece.told = f"It is not JSON, as {schema.place} says."
        elif schema.kind != AVRO:
            piece.told = f"Its schema is of the kind {schema.told}, which is not decoded here."
        else:
            self._try(piece, schema, body)

    def _try(self, piece: _Piece, schema: Schema, data: bytes) -> None:
        if schema.problem:
            piece.told = schema.problem
        else:
            piece.tries.append(Job(schema, data))

    async def _known(self, schema_id: int) -> Schema | None:
        if str(schema_id) in (self._names or ()):
            return await self._file(str(schema_id))
        return None if self._schemas.registry is None else self._schemas.registry.get(schema_id)

    async def _listed(self) -> frozenset[str]:
        if self._schemas.files is None:
            return frozenset()
        try:
            return await asyncio.to_thread(self._schemas.files.names)
        except OSError as error:
            self._troubles[f"The directory of schemas cannot be read: {error.strerror or error}."] = None
            return frozenset()

    async def _file(self, name: str) -> Schema:
        if name not in self._own:
            assert self._schemas.files is not None
            self._own[name] = await asyncio.to_thread(self._schemas.files.of, name)
        return self._own[name]

    async def _ask(self, schema_ids: Iterable[int]) -> None:
        """Have the registry's schemas of these known, as far as the page's bounds allow."""
        registry, names = self._schemas.registry, self._names or ()
        if registry is None:
            return
        asked = [
            each
            for each in schema_ids
            if str(each) not in names and registry.get(each) is None and not registry.is_unknown(each)
        ]
        some = asked[: self._asks_left]
        if len(some) < len(asked):
            self._troubles[f"Records name more than {SCHEMA_ASKS_MAX} schemas: the others are not asked for."] = None
        if some and not registry.trouble and self._ms_left > 0:
            self._asks_left -= len(some)
            begun = self._clock()
            await registry.ask(some, self._ms_left)
            self._ms_left -= (self._clock() - begun) * 1000
        if asked and registry.trouble:
            self._troubles[f"{registry.trouble} What it would tell is shown as bytes."] = None

    # bytes

    async def _decode(self, pieces: Sequence[_Piece]) -> None:
        """By the first schema of each that they are of."""
        left = list(pieces)
        while left:
            jobs = [piece.tries.pop(0) for piece in left]
            try:
                results = await self._schemas.decoder.decode(jobs, self._failures_left)
            except DecoderError as error:
                self._troubles[f"{error} Values of Avro are shown as bytes."] = None
                return
            for piece, job, result in zip(left, jobs, results, strict=True):
                self._take(piece, job.schema, result)
            left = [piece for piece in left if piece.json is None and piece.tries]

    def _take(self, piece: _Piece, schema: Schema, result: Result) -> None:
        match result.outcome:
            case Outcome.JSON:
                piece.json, piece.told = result.data, f"Read with {schema.told}."
            case Outcome.OTHER:
                piece.told = f"It is not as {schema.told} says."
            case Outcome.LARGE:
                piece.told = f"It is too large, or nested too deeply, to be read with {schema.told}."
            case Outcome.REFUSED:
                reason = result.data.decode(errors="replace").rstrip(".")
                piece.told = f"It cannot be read with {schema.told}: that is no usable schema ({reason})."
            case Outcome.FAILED:
                self._failures_left -= 1
                piece.told = f"It cannot be read with {schema.told} within the bounds of time and memory."
            case Outcome.LEFT:
                self._troubles["Values could not be read within bounds: no more are decoded on this page."] = None


def _decoded(record: Record, pieces: dict[str, _Piece], mask: Mask) -> Decoded:
    raw = mask(record)
    if not any(piece.json is not None or piece.told for piece in pieces.values()):
        return Decoded(raw, raw)
    found = {name: piece.json for name, piece in pieces.items() if piece.json is not None}
    shown = raw
    if found:
        shown = mask(record._replace(key=found.get(KEY, record.key), value=found.get(VALUE, record.value)))
    told = {name: piece.told for name, piece in pieces.items() if name in found or not mask.covers(name)}
    return Decoded(shown, raw, Told(told.get(KEY, ""), told.get(VALUE, "")))


def _is_json(data: bytes, *, any_value: bool = False) -> bool:
    """Whether it is an object or a list of JSON, or any value."""
    if not any_value and data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        json_value(data)
    except ValueError:
        return False
    return True
