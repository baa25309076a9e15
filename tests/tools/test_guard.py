"""A hanging test is ended: each way to hang is planted in a run of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest

from tests.guard import HUNG, PATIENCE
from tests.tiers import long_only
from tools.run_tests import MAKES_WAY

ROOT: Final = Path(__file__).resolve().parents[2]
ENDED_S: Final = 60.0
LOOK_EVERY_S: Final = 0.01
WITHOUT: Final = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:benchmark")
PLUGIN: Final = """
import pytest
from tests.guard import Guard


def pytest_configure(config):
    config.pluginmanager.register(Guard(margin_s={margin}, ends_s={ends}))
"""
CONFIG: Final = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
timeout = {limit}
"""
HEAD: Final = """
import asyncio, atexit, subprocess, threading
import pytest
from tests import loops

for_ever = threading.Event()
"""
AFTER_A_FAILURE: Final = """
@pytest.fixture
def slow():
    yield
    for_ever.wait()

def test_fails(slow):
    assert False, "the reason"
"""
ON_UVLOOP: Final = """
def test_hangs():
    async def main():
        await asyncio.Event().wait()
    loops.run(main())

def test_goes_on():
    pass
"""
ON_ASYNCIO: Final = """
async def test_hangs():
    other = asyncio.create_task(busy())
    await asyncio.Event().wait()

async def busy():
    while True:
        await asyncio.sleep(0)

def test_goes_on():
    pass
"""
CLEANING_UP: Final = """
def test_hangs():
    async def main():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.4)  # beyond the alarm
            print("it is cleaned up")
    loops.run(main())

def test_goes_on():
    pass
"""
CLEANING_UP_ON_ASYNCIO: Final = """
async def test_hangs():
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.4)
        print("it is cleaned up")

def test_goes_on():
    pass
"""
BESIDE_A_THREAD: Final = """
def test_hangs():
    async def main():
        await asyncio.to_thread(for_ever.wait)
    loops.run(main())

def test_goes_on():
    pass
"""
IN_THE_LOOP: Final = """
from headrace.net import loops as bare

def test_hangs():
    async def main():
        await asyncio.Event().wait()
    bare.run(main())
"""
AT_THE_END: Final = """
def test_passes():
    atexit.register(for_ever.wait)
"""
A_THREAD_AT_THE_END: Final = """
def test_passes():
    threading.Thread(target=for_ever.wait).start()
"""
WITH_A_CHILD: Final = """
@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("child", process.pid)
    yield
    process.wait()

def test_fails(child):
    assert False, "the reason"
"""
LIMITS: Final = """
from tests.guard import left

@pytest.mark.timeout(100)
def test_by_a_mark():
    print("has", left())
    assert False
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def ran(path: Path, body: str, *, limit: float = 0.5, margin: float = 0.5, ends: float = 0.5, nice: int = 0) -> Ended:
    (path / "pytest.ini").write_text(CONFIG.format(limit=limit))
    (path / "conftest.py").write_text(PLUGIN.format(margin=margin, ends=ends))
    (path / "test_planted.py").write_text(HEAD + body)
    done = subprocess.run(
        ["nice", "-n", str(nice), sys.executable, "-m", "pytest", *WITHOUT, str(path)],
        cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=ENDED_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


patient = partial(ran, limit=3.0, margin=30.0, ends=5.0)
"""It has seconds for what goes on after a test that hangs, however slow the machine is."""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (AFTER_A_FAILURE, "test_fails"),
        pytest.param(IN_THE_LOOP, "test_hangs", marks=long_only),
        pytest.param(AT_THE_END, "what came after", marks=long_only),
        (A_THREAD_AT_THE_END, "what came after"),
    ],
)
def test_a_process_that_hangs_tells_its_stacks_and_ends(tmp_path: Path, body: str, what: str) -> None:
    ended = ran(tmp_path, body)
    assert ended.code == HUNG, ended
    told, _, stacks = ended.err.partition("++++ Hung: ")[2].partition("\n")
    assert what in told
    assert "most recent call first" in stacks
    assert ("the reason" in stacks) == ("the reason" in body), "what failed before"


@pytest.mark.parametrize("body", [ON_UVLOOP, pytest.param(ON_ASYNCIO, marks=long_only)])
def test_a_test_that_hangs_on_a_loop_fails_and_the_next_one_runs(tmp_path: Path, body: str) -> None:
    ended = patient(tmp_path, body)
    assert ended.code == 1, ended
    assert "1 failed, 1 passed" in ended.out
    assert "TimeoutError" in ended.out


@pytest.mark.parametrize("body", [CLEANING_UP, pytest.param(CLEANING_UP_ON_ASYNCIO, marks=long_only)])
def test_what_a_test_cleans_up_beyond_its_limit_is_not_cut_off(tmp_path: Path, body: str) -> None:
    ended = patient(tmp_path, body)
    assert ended.code == 1, ended
    assert "1 failed, 1 passed" in ended.out
    assert "it is cleaned up" in ended.out
    assert "TimeoutError" in ended.out


@long_only
def test_a_thread_that_the_loop_would_wait_for_is_left_until_the_end(tmp_path: Path) -> None:
    ended = patient(tmp_path, BESIDE_A_THREAD)
    assert "1 failed, 1 passed" in ended.out
    assert ended.code == HUNG
    assert "what came after" in ended.err


def test_what_the_process_started_is_killed_with_it(tmp_path: Path) -> None:
    ended = ran(tmp_path, WITH_A_CHILD)
    assert ended.code == HUNG, ended
    pid = int(ended.err.partition("---- killed: ")[2].split()[0])
    while _runs(pid):  # the test's own limit ends what is never killed
        time.sleep(LOOK_EVERY_S)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("nice", "times"), [(0, 1), (MAKES_WAY, PATIENCE)])
def test_a_process_that_makes_way_has_more_time(tmp_path: Path, nice: int, times: int) -> None:
    already = os.getpriority(os.PRIO_PROCESS, 0)
    if already and nice == 0:
        pytest.skip("this process makes way itself")
    ended = ran(tmp_path, LIMITS, margin=30, nice=nice - already)
    by_mark = float(ended.out.partition("has ")[2].split()[0])
    assert 0.9 * 95 * times < by_mark <= 95 * times, ended
