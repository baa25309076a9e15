"""One file per Kafka API, each opening with its behaviour and version notes and exporting `HANDLER`.

To add one: write `handlers/<api>.py` with `HANDLER = Handler(ApiKey.X, (lowest, highest), handle)`. `ALL` finds it;
ApiVersions, dispatch and the docs follow from that. A module without `HANDLER` is shared by others.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from headrace.broker.requests.context import Handler


def _found() -> Iterator[Handler]:
    for info in iter_modules(__path__):
        handler = getattr(import_module(f"{__name__}.{info.name}"), "HANDLER", None)
        if isinstance(handler, Handler):
            yield handler


ALL: Final[tuple[Handler, ...]] = tuple(_found())
