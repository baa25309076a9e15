"""The producers of a partition as of a durable segment's end, in its footer.

A footer holds them as the log's own snapshot file does (`replica.producer_snapshots`), in Base64 and without times. So
the same batches after the same beginning always give the same object. Each footer builds on the one before it: the
headers of the batches show what a producer wrote. A log that begins behind a segment thus knows what the leader knew
there. All of it blocks: never call it on the event loop.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.replica.producer_snapshots import encode_snapshot
from headrace.replica.producers import ProducerStates
from headrace.wire.batches import iterate_headers

UNKNOWN_MS = -1


def producers_after(before: ProducerStates, chunks: Iterable[Buffer], *, known: frozenset[int]) -> str:
    """The producers for the footer of these batches, which follow on `before`; `before` is updated. Only `known`
    producers are included, since the leader has forgotten all others.
    """
    for chunk in chunks:
        for _, header in iterate_headers(chunk):
            before.on_appended(header, Offset(header.base_offset), UNKNOWN_MS)
    told = (
        entry._replace(batches=[each._replace(timestamp=UNKNOWN_MS) for each in entry.batches], marked_ms=UNKNOWN_MS)
        for entry in before.entries()
        if entry.producer_id in known
    )
    return b64encode(encode_snapshot(told)).decode()


def producers_of(told: object, *, now_ms: int = UNKNOWN_MS) -> ProducerStates | None:
    """The producers in a footer, all as if they had just written. None where it has none, as in earlier versions.
    Raises CorruptData.
    """
    if told is None:
        return None
    try:
        if not isinstance(told, str):
            raise ValueError("it is no text")
        return ProducerStates.restore(b64decode(told, validate=True), unknown_ms=now_ms)
    except (ValueError, binascii.Error) as error:
        raise CorruptData(f"its producers cannot be read: {error}") from error
