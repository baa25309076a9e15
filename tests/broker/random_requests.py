"""Random requests of every API that a broker serves, half of whose values mean something to it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.handlers import all_handlers
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.headers import encode_request_frame
from headrace.wire.records import Record
from tests.wire.schema import Case, cases

NAMES: Final = ("group", "member", "1", "range", "consumer", "__consumer_offsets", "", "no such name")
NUMBERS: Final = (0, 0, 1, 1, 2, 3, -1, -2, 100, 127)
BATCH: Final = encode_batch([Record(0, 1_700_000_000_000, b"k", b"v", ())])

SERVED: Final = {ApiKey(handler.key).name.replace("_", "") + "REQUEST": handler for handler in all_handlers()}
REQUESTS: Final = [
    case
    for case in cases()
    if (handler := SERVED.get(case.message.root.name.upper())) is not None
    and handler.versions[0] <= case.version <= handler.versions[1]
]


def frame_of(case: Case, message: Any) -> bytes:
    known = api(SERVED[case.message.root.name.upper()].key)
    assert known is not None
    return b"".join(map(bytes, encode_request_frame(known, case.version, 7, "fuzz", message)))


class Salt(NamedTuple):
    """Values that a broker knows."""

    names: Sequence[str]
    topic_id: UUID

    def salted(self, value: Any, random: Random) -> Any:
        """The message with half of its values replaced by ones that the broker knows. Defaults stay: the version may
        lack the field."""
        if hasattr(value, "_asdict"):
            fields = value._asdict().items()
            defaults = value._field_defaults
            return value._replace(
                **{name: self._field(name, part, random) for name, part in fields if part != defaults.get(name)}
            )
        if isinstance(value, tuple):
            return tuple(self.salted(part, random) for part in value)
        if random.random() < 0.4:
            return value
        match value:
            case bool():
                return value
            case int():
                return random.choice(NUMBERS) if value else value
            case str():
                return random.choice(self.names)
            case UUID():
                return self.topic_id
            case bytes():
                return BATCH
        return value

    def _field(self, name: str, value: Any, random: Random) -> Any:
        found = self.salted(value, random)
        return abs(found) if name == "port" else found  # the one field without a sign
