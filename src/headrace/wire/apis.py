"""The APIs that Headrace can encode and decode, each with its readers and writers by version. A module of messages is
loaded when its API is first requested.

`api(key)` is the way in. Decoding raises `DecodeError` and nothing else, whatever the bytes, and ends exactly at the
end of the buffer. Encoding returns buffers to be sent in order. They include records as they were given, uncopied
except for tiny ones. `headrace.broker` decides which versions a *broker* offers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from headrace.base.limits import MESSAGE_ELEMENTS_MAX, REQUEST_ELEMENTS_MAX
from headrace.base.ports import Buffer
from headrace.wire.codec import DecodeError, EncodeError, grant, settle
from headrace.wire.messages.catalog import FACTS, ApiKey

__all__ = ["APIS_BY_KEY", "Api", "ApiKey", "DecodeError", "EncodeError", "api", "flexible_since"]

Reader = Callable[[memoryview, int], tuple[Any, int]]
Writer = Callable[[Any, bytearray, list[Buffer]], bytearray]


class Api:
    """One API: its facts, and codecs for versions `min_version` to `max_version`."""

    __slots__ = (
        "_request_readers",
        "_request_writers",
        "_response_readers",
        "_response_writers",
        "flexible_since",
        "key",
        "max_version",
        "min_version",
        "name",
    )

    def __init__(self, key: int, name: str, versions: tuple[int, int], flexible_since: int | None, module: str) -> None:
        messages = import_module(f"headrace.wire.messages.{module}")
        self.key: Final = ApiKey(key)
        self.name: Final = name
        self.min_version: Final = versions[0]
        self.max_version: Final = versions[1]
        self.flexible_since: Final = flexible_since
        """First version with compact lengths and tagged fields (KIP-482), or None."""
        self._request_readers: Final[tuple[Reader, ...]] = messages.REQUEST_READERS
        self._request_writers: Final[tuple[Writer, ...]] = messages.REQUEST_WRITERS
        self._response_readers: Final[tuple[Reader, ...]] = messages.RESPONSE_READERS
        self._response_writers: Final[tuple[Writer, ...]] = messages.RESPONSE_WRITERS

    def __repr__(self) -> str:
        return f"Api({self.name})"

    def decode_request(self, version: int, body: memoryview) -> Any:
        """The request in `body`, which is all of a frame after its header. Records are views of it."""
        reader = self._of(self._request_readers, version)
        return decode_whole(reader, body, 0, f"{self.name} request v{version}", REQUEST_ELEMENTS_MAX)

    def decode_response(self, version: int, body: memoryview) -> Any:
        """The response in `body`, which is all of a frame after its header. Records are views of it."""
        return decode_whole(self._of(self._response_readers, version), body, 0, f"{self.name} response v{version}")

    def encode_request(self, version: int, message: Any) -> list[Buffer]:
        """The encoded body alone. Raises EncodeError where the version lacks a field that the request needs."""
        return self.append_request(version, message, bytearray())

    def encode_response(self, version: int, message: Any) -> list[Buffer]:
        """The encoded body alone. Fields that the version lacks are left out. Raises EncodeError on values that do not
        fit."""
        return self.append_response(version, message, bytearray())

    def append_request(self, version: int, message: Any, out: bytearray) -> list[Buffer]:
        """Append `encode_request` to `out`; the first buffer returned is `out`."""
        return encode_whole(self._of(self._request_writers, version), message, out, version)

    def append_response(self, version: int, message: Any, out: bytearray) -> list[Buffer]:
        """Append `encode_response` to `out`; the first buffer returned is `out`."""
        return encode_whole(self._of(self._response_writers, version), message, out, version)

    def _of(self, codecs: tuple[Any, ...], version: int) -> Any:
        if not self.min_version <= version <= self.max_version:
            raise DecodeError(f"{self.name} has no version {version}")
        return codecs[version - self.min_version]


def decode_whole(reader: Reader, data: memoryview, at: int, what: str, elements_max: int = MESSAGE_ELEMENTS_MAX) -> Any:
    """Read one message from `at` to exactly the end of `data`. All its arrays together may have `elements_max`
    elements. Raises DecodeError, naming `what`."""
    grant(data, elements_max)
    try:
        message, end = reader(data, at)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise DecodeError(f"{what} is cut off or malformed: {error}") from error
    except DecodeError as error:
        raise DecodeError(f"{what}: {error}") from error
    finally:
        settle(data)
    if end != len(data):
        kind = "has bytes left over" if end < len(data) else "is cut off"
        raise DecodeError(f"{what} {kind}: it ends at {end} of {len(data)}")
    return message


def encode_whole(writer: Writer, message: Any, out: bytearray, version: int) -> list[Buffer]:
    """Append one message to `out`. Raises EncodeError."""
    done: list[Buffer] = []
    try:
        last = writer(message, out, done)
    except (struct.error, AttributeError, TypeError, OverflowError, UnicodeEncodeError, EncodeError) as error:
        raise EncodeError(f"{type(message).__name__} does not fit version {version}: {error}") from error
    if last:
        done.append(last)
    return done


_FACTS_BY_KEY: Final = {facts[0]: facts for facts in FACTS}
APIS_BY_KEY: Final[dict[int, str]] = {facts[0]: facts[1] for facts in FACTS if facts[5] is not None}
"""Key and name of every API that `api` knows; reading it loads nothing."""
_loaded: Final[dict[int, Api]] = {}


def api(key: int) -> Api | None:
    """The API with this key, or None where Headrace cannot code it. Loads its messages on first use."""
    known = _loaded.get(key)
    if known is None and key in APIS_BY_KEY:
        _, name, first, last, flexible, module = _FACTS_BY_KEY[key]
        assert module is not None
        known = _loaded[key] = Api(key, name, (first, last), flexible, module)
    return known


def flexible_since(key: int) -> int | None:
    """First flexible version of any API of the protocol, coded here or not; None for never or unknown."""
    facts = _FACTS_BY_KEY.get(key)
    return facts[4] if facts is not None else None
