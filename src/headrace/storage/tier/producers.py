"""The producers of a partition as of a durable segment's end, in its footer.

A footer holds them as the log's own snapshot file does (`replica.producer_snapshots`), in Base64 and without times. So
the same batches after the same beginning always give the same object. Each footer builds on the one before it: the
headers of the batches show what a producer wrote. A log that begins behind a segment thus knows what the leader knew
there. All of it blocks: never call it on the event loop.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.replica.producer_snapshots import encode_snapshot
from headrace.replica.producers import ProducerStates
from headrace.replica.transactions import CompletedTransaction
from headrace.wire.batches import iterate_headers
from headrace.wire.transactions import AbortedTransaction, marker_in

UNKNOWN_MS = -1


def producers_after(
    before: ProducerStates,
    chunks: Iterable[Buffer],
    *,
    known: frozenset[int],
    aborted: list[AbortedTransaction] | None = None,
) -> str:
    """The producers for the footer of these batches, which follow on `before`; `before` is updated. Only `known`
    producers are included, since the leader has forgotten all others, and those with a transaction that is open behind
    the batches. `aborted` gets the transactions whose abort markers are in the batches. Raises CorruptData.
    """
    for chunk in chunks:
        for ended in replayed(before, chunk, UNKNOWN_MS):
            if aborted is not None and ended.is_aborted:
                aborted.append(ended.aborted)
    told = (
        entry._replace(batches=[each._replace(timestamp=UNKNOWN_MS) for each in entry.batches], marked_ms=UNKNOWN_MS)
        for entry in before.entries()
        if entry.producer_id in known or entry.transaction_start >= 0
    )
    return b64encode(encode_snapshot(told)).decode()


def replayed(states: ProducerStates, batches: Buffer, now_ms: int) -> Iterator[CompletedTransaction]:
    """Tell the states of these batches of a log, markers included. Yields the transactions that end in them; it has to
    be read to the end. Raises CorruptData.
    """
    for at, header in iterate_headers(batches):
        base = Offset(header.base_offset)
        if not header.is_control:
            states.on_appended(header, base, now_ms)
        elif (ended := states.on_marker(header, marker_in(batches, at, header), base, now_ms)) is not None:
            yield ended


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
