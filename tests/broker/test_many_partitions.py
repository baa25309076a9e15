"""Many partitions on one broker, in short: all that was acknowledged is there after either end, and files stay few. The
long form, with its figures, is `make partitions`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.micro.partitions import fill, make, run, topics
from headrace.broker.partitions import flusher
from headrace.storage.log.engine import LocalLogEngine
from tests.broker.data_path import LATEST, fetch, offset_at
from tests.broker.group_broker import RawClient, running

PARTITIONS = 60
FILES = 16


@pytest.mark.parametrize("kill", [False, True])
def test_the_benchmark_finds_all_of_them_again(tmp_path: Path, kill: bool) -> None:
    for _, figures in run(tmp_path, PARTITIONS, kill=kill):
        names = {figure.name: figure.value for figure in figures}
        assert {"start", "resident", "metadata", "open files"} <= set(names)
        assert names["open files"] < 2 * PARTITIONS


async def test_open_files_stay_within_their_limit_whatever_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = LocalLogEngine.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "open_files_max", FILES)
    monkeypatch.setattr(flusher, "LOGS_FLUSHED_AT_ONCE_MAX", FILES // 2)
    idle = 0
    for life in range(2):
        async with running(tmp_path) as bootstrap, RawClient(bootstrap) as client:
            if life == 0:
                await make(bootstrap, PARTITIONS)
            idle = idle or open_files()
            await fill(bootstrap, PARTITIONS)
            for name, count in topics(PARTITIONS):
                for partition in range(count):
                    assert (await offset_at(client, name, LATEST, partition=partition)).offset == life + 1
                    for offset in range(life + 1):
                        assert (await fetch(client, name, offset, partition=partition)).error_code == 0
            assert open_files() - idle <= FILES + 2


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
