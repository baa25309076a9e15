"""Messages that travel inside others, each prefixed by an int16: a version, or the type of a record's key.

These are the consumer protocol (in JoinGroup and SyncGroup) and the records of `__consumer_offsets` and of
`__transaction_state`. Keys begin with a type (1 offset commit, 2 group; 0 in `__transaction_state`), values with a
version.
"""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any, Final

from headrace.base.ports import Buffer
from headrace.wire.apis import decode_whole, encode_whole
from headrace.wire.codec import DecodeError, EncodeError

_PREFIX: Final = struct.Struct(">h")


class VersionedData:
    """A message prefixed by its version."""

    def __init__(self, module: str, min_version: int, max_version: int, *, lenient: bool = False) -> None:
        messages = import_module(f"headrace.wire.messages.{module}")
        self.name: Final = module
        self.min_version: Final = min_version
        self.max_version: Final = max_version
        self.lenient: Final = lenient
        """Read a version that is too new as the newest known one, and ignore the rest: the consumer protocol's rule."""
        self._readers: Final = messages.READERS
        self._writers: Final = messages.WRITERS

    def encode(self, version: int, message: Any) -> bytes:
        """Encode version and message. Raises EncodeError."""
        if not self.min_version <= version <= self.max_version:
            raise EncodeError(f"{self.name} has no version {version}")
        out = bytearray(_PREFIX.pack(version))
        return b"".join(encode_whole(self._writers[version - self.min_version], message, out, version))

    def decode(self, data: Buffer) -> tuple[int, Any]:
        """Decode to (version, message). Raises DecodeError on anything wrong, including an unknown version."""
        view = memoryview(data)
        if len(view) < 2:
            raise DecodeError(f"{self.name} is cut off")
        (version,) = _PREFIX.unpack_from(view)
        known = min(version, self.max_version) if self.lenient else version
        if not self.min_version <= known <= self.max_version:
            raise DecodeError(f"{self.name} has no version {version}")
        reader = self._readers[known - self.min_version]
        if self.lenient:
            return version, _decode_start(reader, view, self.name)
        return version, decode_whole(reader, view, 2, f"{self.name} v{version}")


class TypedKey:
    """A record's key, prefixed by its type."""

    def __init__(self, module: str, record_type: int) -> None:
        messages = import_module(f"headrace.wire.messages.{module}")
        self.name: Final = module
        self.record_type: Final = record_type
        self._reader: Final = messages.READERS[0]
        self._writer: Final = messages.WRITERS[0]

    def encode(self, message: Any) -> bytes:
        out = bytearray(_PREFIX.pack(self.record_type))
        return b"".join(encode_whole(self._writer, message, out, 0))

    def decode(self, data: Buffer) -> Any:
        """Decode a key. Raises DecodeError, also where the key is of another type: see `key_type`."""
        if key_type(data) != self.record_type:
            raise DecodeError(f"a key of type {key_type(data)} is no {self.name}")
        return decode_whole(self._reader, memoryview(data), 2, self.name)


def key_type(data: Buffer) -> int:
    """The type at the start of a record's key. Raises DecodeError."""
    if len(data) < 2:
        raise DecodeError("a record's key is cut off")
    record_type: int = _PREFIX.unpack_from(data)[0]
    return record_type


def _decode_start(reader: Any, view: memoryview, name: str) -> Any:
    """Read one message; more bytes may follow it."""
    end: list[int] = []

    def measured(data: memoryview, at: int) -> tuple[Any, int]:
        message, position = reader(data, at)
        end.append(position)
        return message, len(data) if position < len(data) else position

    return decode_whole(measured, view, 2, name)


CONSUMER_SUBSCRIPTION: Final = VersionedData("consumer_protocol_subscription", 0, 3, lenient=True)
CONSUMER_ASSIGNMENT: Final = VersionedData("consumer_protocol_assignment", 0, 3, lenient=True)
OFFSET_COMMIT_KEY: Final = TypedKey("offset_commit_key", 1)
OFFSET_COMMIT_VALUE: Final = VersionedData("offset_commit_value", 0, 4)
GROUP_METADATA_KEY: Final = TypedKey("group_metadata_key", 2)
GROUP_METADATA_VALUE: Final = VersionedData("group_metadata_value", 0, 4)
CONSUMER_GROUP_METADATA_KEY: Final = TypedKey("consumer_group_metadata_key", 3)
CONSUMER_GROUP_METADATA_VALUE: Final = VersionedData("consumer_group_metadata_value", 0, 0)
CONSUMER_GROUP_PARTITION_METADATA_KEY: Final = TypedKey("consumer_group_partition_metadata_key", 4)
CONSUMER_GROUP_MEMBER_METADATA_KEY: Final = TypedKey("consumer_group_member_metadata_key", 5)
CONSUMER_GROUP_MEMBER_METADATA_VALUE: Final = VersionedData("consumer_group_member_metadata_value", 0, 0)
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY: Final = TypedKey("consumer_group_target_assignment_metadata_key", 6)
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE: Final = VersionedData(
    "consumer_group_target_assignment_metadata_value", 0, 0
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY: Final = TypedKey("consumer_group_target_assignment_member_key", 7)
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE: Final = VersionedData(
    "consumer_group_target_assignment_member_value", 0, 0
)
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY: Final = TypedKey("consumer_group_current_member_assignment_key", 8)
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE: Final = VersionedData(
    "consumer_group_current_member_assignment_value", 0, 0
)
CONSUMER_GROUP_REGULAR_EXPRESSION_KEY: Final = TypedKey("consumer_group_regular_expression_key", 16)
CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE: Final = VersionedData("consumer_group_regular_expression_value", 0, 0)
TRANSACTION_LOG_KEY: Final = TypedKey("transaction_log_key", 0)
TRANSACTION_LOG_VALUE: Final = VersionedData("transaction_log_value", 0, 1)
