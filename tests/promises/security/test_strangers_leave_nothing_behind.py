"""Promises 8 and 10: whatever strangers send, and however often, next to nothing of it stays in a broker's memory.

A few hundred requests of each kind here; `python -m benchmarks.micro.hostile --rss` sends ten thousand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.promises.support.strangers import COSTLY_PART, OPTIONS, End, Kind, Stranger, kinds, of_names
from tools import warm
from tools.servers.broker_process import BrokerProcess

REQUESTS: Final = 150
WARM_UP: Final = 50
GROWTH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one kind: some 55 KB a request. One that keeps what it has read is far above."""
COSTLY_GROWTH_BYTES_MAX: Final = 160 * 1024 * 1024
"""Of bombs: what unpacks two at a time may still be with the allocator; kept, these would be 480 MB."""
ALL_GROWTH_BYTES_MAX: Final = 100 * 1024 * 1024
ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""With these, freed memory goes back to the system at once. Else the allocator holds some 40 MB for each thread that
has unpacked something, and their number is chance."""


def test_what_strangers_send_leaves_next_to_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(warm.IS_ON, raising=False)  # the allocator reads its settings when a process begins
    for name, value in ALLOCATOR.items():
        monkeypatch.setenv(name, value)
    grown: dict[str, int] = {}
    with BrokerProcess(tmp_path, *OPTIONS) as broker:
        stranger, process = Stranger(broker.bootstrap), psutil.Process(broker.pid)
        stranger.prepare()

        def memory(kind: Kind, numbers: range) -> int:
            stranger.send(kind, numbers)
            stranger.send(Kind("and all before it is through", End.ANSWERED, lambda _: of_names("plain")), range(1))
            return int(process.memory_info().rss)

        begun = memory(Kind("nothing", End.LEFT, lambda _: b""), range(WARM_UP))
        for kind in kinds():
            part, bound = (COSTLY_PART, COSTLY_GROWTH_BYTES_MAX) if kind.is_costly else (1, GROWTH_BYTES_MAX)
            warm_up, number = WARM_UP // part, REQUESTS // part
            before = memory(kind, range(warm_up))
            more = memory(kind, range(warm_up, warm_up + number)) - before
            if more > bound + kind.keeps_bytes * number:
                grown[kind.name] = more
        in_all = int(process.memory_info().rss) - begun
    assert not grown, f"bytes more after {REQUESTS} requests: {grown}"
    assert in_all < ALL_GROWTH_BYTES_MAX + REQUESTS * sum(kind.keeps_bytes for kind in kinds())
