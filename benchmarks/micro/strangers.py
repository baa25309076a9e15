"""Leftovers of hostile requests: a broker process's resident memory before and after so many of each kind. It must be
flat within GROWTH_BYTES_MAX. `python -m benchmarks.micro.hostile --rss` prints it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from tests.promises.support.strangers import COSTLY_PART, OPTIONS, Kind, Stranger, kinds
from tools.servers.broker_process import BrokerProcess

GROWTH_BYTES_MAX: Final = 50 * 1024 * 1024
WARM_UP: Final = 200
"""Requests of a kind that come before it is measured: modules, buffers and caches of a fixed size."""
REST_S: Final = 0.5
MIB: Final = 1024 * 1024


def measure(requests: int, part_of_name: str) -> bool:
    """Print a line for each kind; whether all stayed flat."""
    chosen = [kind for kind in kinds() if part_of_name in kind.name]
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory), *OPTIONS) as broker:
        stranger, process = Stranger(broker.bootstrap), psutil.Process(broker.pid)
        stranger.prepare()
        print(f"{'':52}  {'requests':>8}  {'s':>6}  {'MiB before':>10}  {'after':>6}  {'more':>6}")
        flat = [_measured(kind, stranger, process, requests) for kind in chosen]
        return all(flat)


def _measured(kind: Kind, stranger: Stranger, process: psutil.Process, requests: int) -> bool:
    number = requests // COSTLY_PART if kind.is_costly else requests
    warm_up = WARM_UP // COSTLY_PART if kind.is_costly else WARM_UP
    stranger.send(kind, range(warm_up))
    time.sleep(REST_S)
    before, begun = process.memory_info().rss, time.monotonic()
    stranger.send(kind, range(warm_up, warm_up + number))
    seconds = time.monotonic() - begun
    time.sleep(REST_S)
    after = process.memory_info().rss
    kept = min(kind.keeps_bytes * number, kind.keeps_bytes_max)
    is_flat = after - before <= GROWTH_BYTES_MAX + kept
    mark = "" if is_flat else "  grows"
    figures = f"{before / MIB:10.1f}  {after / MIB:6.1f}  {(after - before) / MIB:6.1f}"
    print(f"{kind.name:52}  {number:8}  {seconds:6.1f}  {figures}{mark}", flush=True)
    return is_flat
