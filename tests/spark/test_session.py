"""A session makes way for what else runs on its machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.session import keep_off, lower

NICE = 7
MANY_THREADS = """
import os, sys, threading
ended, begun = threading.Event(), threading.Barrier(9)
def rest():
    begun.wait()
    ended.wait()
for _ in range(8):
    threading.Thread(target=rest, daemon=True).start()
begun.wait()
ours, theirs = os.pipe()
older = os.fork()
if older == 0:
    os.read(ours, 1)
    print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)
    os._exit(0)
print("ready", flush=True)
sys.stdin.readline()
os.write(theirs, b".")
os.waitpid(older, 0)
younger = os.fork()
if younger == 0:
    print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)
    os._exit(0)
os.waitpid(younger, 0)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not tell of threads")
def test_all_threads_of_a_process_are_lowered_and_what_it_starts() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    nice = min(19, before + NICE)
    command = [sys.executable, "-c", MANY_THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lower(process.pid, nice)
        threads = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) == 9
        assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {nice}
        process.stdin.write("\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == [f"{nice}\n"] * 2, "the older child, and a new one"
    assert process.returncode == 0
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not tell of threads")
def test_who_is_as_nice_as_can_be_gives_way_at_once() -> None:
    """Linux leaves who runs its slice, but for SCHED_IDLE."""
    with subprocess.Popen(
        [sys.executable, "-c", MANY_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        lower(process.pid, 18)
        threads = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
        assert {os.sched_getscheduler(each) for each in threads} == {os.SCHED_OTHER}
        lower(process.pid, 19)
        assert {os.sched_getscheduler(each) for each in threads} == {os.SCHED_IDLE}
        process.stdin.write(b"\n")


def test_nobody_is_raised() -> None:
    """A pipeline that is nicer already stays so, also where its user might not lower it."""
    command = ["nice", "-n", "15", sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.readline()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = os.getpriority(os.PRIO_PROCESS, process.pid)
        assert before >= 15
        lower(process.pid, 5)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == before
        process.stdin.write("\n")


def test_what_may_not_be_lowered_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    lower(os.getpid(), 19)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no such call")
@pytest.mark.parametrize("spared", [1, 1_000])
def test_all_threads_leave_processors_to_others_and_keep_one(spared: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(
        [sys.executable, "-c", MANY_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        keep_off(process.pid, spared)
        threads = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) == 9
        kept = set(usable[spared:]) or {usable[-1]}
        assert [os.sched_getaffinity(each) for each in threads] == [kept] * 9
        process.stdin.write(b"\n")
    assert sorted(os.sched_getaffinity(0)) == usable
