"""Where the time goes: a flame graph of our broker during a run of its own, which is not counted.

py-spy samples the process from outside, native frames included (uvloop, CRC32C, system calls), for which Linux has to
allow ptrace. The SVG, made to be opened in a browser, lies in var/, which git ignores. Threads that wait for a lock are
in it now and then, for to be sampled wakes them.
"""

from __future__ import annotations

import html
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.load.cases import Case
from benchmarks.load.rivals import Rival

PROFILES: Final = Path(__file__).resolve().parents[2] / "var" / "profiles"
SAMPLES_PER_SECOND: Final = 200
ATTACH_TIMEOUT_S: Final = 30.0
WRITE_TIMEOUT_S: Final = 60.0
ATTACHED: Final = "Sampling process"
FRAME: Final = re.compile(
    r'<title>(.*?)(?::\d+)?(\)?) \([\d,]+ samples?, [\d.]+%\)</title><rect [^>]*y="(\d+)"[^>]*fg:x="(\d+)" fg:w="(\d+)"'
)
"""A box of the SVG: function and file, without the line; its row, and its place and width in samples."""
ROW_HEIGHT: Final = 16
WAITS: Final = {"PyThread_acquire_lock_timed", "pthread_cond_timedwait", "pthread_cond_wait", "epoll_pwait"}
"""Frames above these are no work."""


class NoProfile(Exception):  # noqa: N818 - a sentence to the user
    """There is none; the text says why."""


def profile(case: Case, rival: Rival) -> Path:
    """Run the case once more under py-spy; the path of the flame graph. Raises NoProfile."""
    if case.about.restarts:
        raise NoProfile("No profile: this case ends the process that would be profiled.")
    PROFILES.mkdir(parents=True, exist_ok=True)
    path = PROFILES / f"{case.about.name}.svg"
    with recorded(rival.pids[0], path):
        case.run(case.about.entrant(rival))
    return path


def hottest(path: Path, most: int) -> list[tuple[str, float]]:
    """Where the time of a flame graph went: functions without what they called, each with its share of the work."""
    rows: dict[int, list[tuple[int, int, str]]] = {}
    for name, end, y, x, width in FRAME.findall(path.read_text()):
        rows.setdefault(int(y), []).append((int(x), int(width), html.unescape(name + end)))
    own, waiting = Counter[str](), set[int]()
    for y, frames in sorted(rows.items()):
        called = rows.get(y + ROW_HEIGHT, [])
        for x, width, name in frames:
            if name.partition(" ")[0] in WAITS:
                waiting.update(range(x, x + width))
            elif x not in waiting:
                own[name] += width - sum(inner for at, inner, _ in called if x <= at < x + width)
    working = own.total()
    return [(name, count / working) for name, count in own.most_common(most) if count]


@contextmanager
def recorded(pid: int, path: Path) -> Iterator[None]:
    program = shutil.which(Path(sys.executable).with_name("py-spy")) or shutil.which("py-spy")
    if program is None:
        raise NoProfile("No profile: py-spy is not installed.")
    path.unlink(missing_ok=True)
    command = [program, "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_SECOND), "--native", "--threads"]
    with tempfile.TemporaryDirectory() as directory:
        said = Path(directory) / "said"
        with said.open("wb") as output:
            recorder = subprocess.Popen(
                [*command, "--output", str(path)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            _wait_until_attached(recorder, said)
            yield
        finally:
            recorder.send_signal(signal.SIGINT)  # it writes what it has
            try:
                recorder.wait(WRITE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                recorder.kill()
                recorder.wait()
        if not path.exists():
            raise NoProfile(f"No profile: py-spy wrote none: {_last_line(said)}")


def _wait_until_attached(recorder: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    while ATTACHED not in said.read_text():
        if recorder.poll() is not None or time.monotonic() > deadline:
            raise NoProfile(f"No profile: py-spy cannot attach to the broker: {_last_line(said)}")
        time.sleep(0.05)


def _last_line(said: Path) -> str:
    return next((line.strip() for line in reversed(said.read_text().splitlines()) if line.strip()), "it said nothing")
