"""An owner's producer state, as text that fits into a metadata event.

Promises: `unpacked(packed(x)) == x`. Other text raises CorruptData, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import zlib

from headrace.base.errors import CorruptData
from headrace.base.limits import PRODUCER_SNAPSHOT_BYTES_MAX

LEVEL = 1


def packed(snapshot: bytes) -> str:
    """Return a producer snapshot (`replica.producer_snapshots`) as text. With many producers it takes long: not on the
    event loop."""
    return base64.b64encode(zlib.compress(snapshot, LEVEL)).decode("ascii")


def unpacked(text: str) -> bytes:
    """Return the snapshot in the text. Raises CorruptData."""
    try:
        inflating = zlib.decompressobj()
        found = inflating.decompress(base64.b64decode(text, validate=True), PRODUCER_SNAPSHOT_BYTES_MAX)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise CorruptData(f"The producers of a sealed partition cannot be read: {error}.") from error
    if not inflating.eof:
        raise CorruptData("The producers of a sealed partition are cut, or too many.")
    return found
