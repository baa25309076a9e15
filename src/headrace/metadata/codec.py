"""Metadata events as JSON, one object each, and the image as JSON for people.

Promises:
- `decode_event(encode_event(e)) == e`.
- Text that is not such JSON raises CorruptData, and nothing else.
- An event with an unknown number, or of a newer version, is refused rather than half understood. So is a feature level
  that this release does not know: events of it would follow.

The shape of an event follows from its dataclass, so a new event needs no code here. `shape_of` gives the JSON of any
frozen dataclass with such fields.
"""

from __future__ import annotations

import base64
import json
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import IntEnum, StrEnum
from functools import cache
from typing import Any, Final

import immutables

from headrace.base.errors import CorruptData
from headrace.base.values import Value
from headrace.metadata.access.acls import Acl, AclFilter, found
from headrace.metadata.events import LevelFinalized, MetadataEvent, ScramCredentialChanged, SecretMade
from headrace.metadata.image import MetadataImage
from headrace.metadata.levels import METADATA_LEVEL
from headrace.metadata.moves import StorageStateSealed
from headrace.metadata.values import BrokerImage, TopicImage

EVENT_TYPES: Final[Mapping[int, type[Any]]] = {event.TYPE: event for event in typing.get_args(MetadataEvent)}


def encode_event(event: MetadataEvent) -> dict[str, Any]:
    """A JSON object: the event's number, the lowest version that understands it, its name for human readers, and its
    fields."""
    cls: Any = type(event)
    version = getattr(event, "least_version", cls.VERSION)
    return {"type": cls.TYPE, "version": version, "event": cls.__name__, **shape_of(cls).encode(event)}


def shown_event(event: MetadataEvent) -> dict[str, Any]:
    """As `encode_event`, for people: without secrets and the keys of a credential. No event can be read from it."""
    shown = encode_event(event)
    if isinstance(event, ScramCredentialChanged) and event.credential is not None:
        shown["credential"] = {"iterations": event.credential.iterations}
    if isinstance(event, SecretMade):
        shown["secret"] = None
    return shown


def decode_event(value: object) -> MetadataEvent:
    """The inverse of `encode_event`. Raises CorruptData."""
    if not isinstance(value, dict):
        raise CorruptData(f"A metadata event is not a JSON object: {value!r:.100}.")
    cls: Any = EVENT_TYPES.get(value.get("type", -1)) if isinstance(value.get("type"), int) else None
    if cls is None or not isinstance(version := value.get("version"), int) or version > cls.VERSION:
        raise CorruptData(
            f"Metadata event {value.get('event')!r:.60} (type {value.get('type')!r:.20}, version "
            f"{value.get('version')!r:.20}) is unknown here: start the Headrace version that wrote it, or a newer one."
        )
    event = typing.cast("MetadataEvent", shape_of(cls).decode(value, cls.__name__))
    if isinstance(event, LevelFinalized) and event.level > METADATA_LEVEL:
        raise CorruptData(
            f"This cluster is at feature level {event.level}, and this release of Headrace knows none above "
            f"{METADATA_LEVEL}: start the release that ran here before, or a newer one."
        )
    return event


def encode_events(events: Iterable[MetadataEvent]) -> bytes:
    """JSON lines, UTF-8: the content of one commit-log entry."""
    return b"".join(encode_line(event) for event in events)


def encode_line(event: MetadataEvent) -> bytes:
    """One event as a JSON line."""
    return json.dumps(encode_event(event), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode_events(data: bytes | memoryview) -> tuple[MetadataEvent, ...]:
    """The inverse of `encode_events`. Raises CorruptData."""
    return tuple(decode_line(line) for line in bytes(data).splitlines())


def decode_line(line: bytes) -> MetadataEvent:
    """The inverse of `encode_line`. Raises CorruptData."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"A metadata event is not JSON: {line[:100]!r}.") from error
    return decode_event(value)


def image_as_json(image: MetadataImage) -> dict[str, Any]:
    """The whole image for people and tools: a dict for `json.dumps`, in a fixed order."""
    topics = sorted(image.topics.values(), key=lambda topic: topic.name)
    return {
        "cluster_id": image.cluster_id,
        "engine": image.engine.value,
        "level": image.level,
        "index": image.index,
        "next_producer_id": image.next_producer_id,
        "votes_withheld": sorted(image.withheld),
        "lineage": str(image.lineage),
        "doubts": image.doubts,
        "brokers": [shape_of(BrokerImage).encode(broker) for _, broker in sorted(image.brokers.items())],
        "broker_configs": {
            "default" if broker is None else str(broker): dict(sorted(configs.items()))
            for broker, configs in image.broker_configs.items()
        },
        "quotas": [
            {"entity": dict(entity), "quotas": dict(sorted(quotas.items()))}
            for entity, quotas in sorted(image.quotas.items(), key=lambda item: str(item[0]))
        ],
        "acls": [shape_of(Acl).encode(acl) for acl in found(image.acls, AclFilter())],
        "scram": {  # no keys: people see this
            user: {mechanism.title: {"iterations": one.iterations} for mechanism, one in sorted(credentials.items())}
            for user, credentials in sorted(image.scram.items())
        },
        "topics": [shape_of(TopicImage).encode(topic) for topic in topics],
        "catalog": dict(_catalog_as_json(image)),
    }


def _catalog_as_json(image: MetadataImage) -> Iterator[tuple[str, Any]]:
    for key, move in sorted(image.moves.items()):
        if move.state is not None:
            state = {"sealed": True, **shape_of(StorageStateSealed).encode(move.state)}
            yield f"storage/topics/{key.topic_id}/{key.partition}/state", state
    for key, catalog in sorted(image.catalog.items()):
        prefix = f"storage/topics/{key.topic_id}/{key.partition}/segments"
        for entry in catalog:
            yield f"{prefix}/{entry.descriptor.start_offset:020d}", entry.to_json()
        yield f"{prefix}/cur", {"head": catalog.head, "end_offset": catalog.end_offset}


# The JSON form of Python types. Shapes are built once per type, from its annotations.


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shape(Value):
    """`encode` takes a value of the type. `decode` takes parsed JSON and its location, and raises CorruptData."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any, str], Any]


@cache
def shape_of(kind: Any) -> Shape:
    """The JSON form of a type: of plain values, bytes, UUIDs, enums, dataclasses, and optionals, tuples and mappings of
    these."""
    while hasattr(kind, "__supertype__"):  # a NewType is its base on disk
        kind = kind.__supertype__
    if kind in (int, str, bool, float):
        return _plain(kind)
    if kind is bytes:
        return Shape(lambda value: base64.b64encode(value).decode(), _decode_bytes)
    if kind is uuid.UUID:
        return Shape(str, _decode_uuid)
    if isinstance(kind, type) and issubclass(kind, IntEnum | StrEnum):
        return _enum(kind)
    if is_dataclass(kind):
        return _object(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _optional(shape_of(arguments[0]))
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return _fixed(tuple(map(shape_of, arguments)))
        return _list(shape_of(arguments[0]))
    assert issubclass(origin, Mapping), f"no shape for {kind}"
    return _mapping(shape_of(arguments[1]), immutables.Map if origin is immutables.Map else dict)


def _plain(kind: type) -> Shape:
    def decode(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _wrong(value, where, kind.__name__)
        return value

    return Shape(lambda value: value, decode)


def _decode_bytes(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError) as error:
        raise _wrong(value, where, "base64") from error


def _decode_uuid(value: Any, where: str) -> uuid.UUID:
    try:
        return uuid.UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise _wrong(value, where, "UUID") from error


def _enum(kind: type[IntEnum] | type[StrEnum]) -> Shape:
    def decode(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            raise _wrong(value, where, kind.__name__) from error

    return Shape(int if issubclass(kind, IntEnum) else str, decode)


def _optional(inner: Shape) -> Shape:
    return Shape(
        lambda value: None if value is None else inner.encode(value),
        lambda value, where: None if value is None else inner.decode(value, where),
    )


def _list(inner: Shape) -> Shape:
    def decode(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(value, where, "list")
        return tuple(inner.decode(item, where) for item in value)

    return Shape(lambda value: [inner.encode(item) for item in value], decode)


def _fixed(inner: tuple[Shape, ...]) -> Shape:
    def decode(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(inner):
            raise _wrong(value, where, f"list of {len(inner)}")
        return tuple(shape.decode(item, where) for shape, item in zip(inner, value, strict=True))

    return Shape(lambda value: [shape.encode(item) for shape, item in zip(inner, value, strict=True)], decode)


def _mapping(inner: Shape, make: Callable[[dict[str, Any]], Any]) -> Shape:
    def decode(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, where, "object")
        return make({key: inner.decode(item, f"{where}.{key}") for key, item in value.items()})

    return Shape(lambda value: {key: inner.encode(item) for key, item in sorted(value.items())}, decode)


def _object(kind: Any) -> Shape:
    hints = typing.get_type_hints(kind)
    parts = [(field.name, shape_of(hints[field.name]), field.default is not MISSING) for field in fields(kind)]

    def encode(value: Any) -> dict[str, Any]:
        return {name: shape.encode(getattr(value, name)) for name, shape, _ in parts}

    def decode(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, where, "object")
        found = {}
        for name, shape, optional in parts:
            if name in value:
                found[name] = shape.decode(value[name], f"{where}.{name}")
            elif not optional:
                raise CorruptData(f"A metadata event has no {where}.{name}.")
        return kind(**found)

    return Shape(encode, decode)


def _wrong(value: object, where: str, wanted: str) -> CorruptData:
    return CorruptData(f"A metadata event's {where} is {value!r:.100}, not {wanted}.")
