"""One file per Kafka API, each opening with its behaviour and version notes and exporting `HANDLER`.

To add one: write `handlers/<api>.py` with `HANDLER = Handler(ApiKey.X, (lowest, highest), handle)` and name it in
`ALL`. ApiVersions, dispatch and the docs follow from that.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import Handler
from headrace.broker.handlers import (
    api_versions,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)

ALL: Final[tuple[Handler, ...]] = tuple(
    module.HANDLER
    for module in (
        api_versions,
        fetch,
        init_producer_id,
        list_offsets,
        offset_for_leader_epoch,
        produce,
    )
)
