"""Runs of a pipeline as processes of their own, killed where something has just happened; on S3, the store too.

HEADRACE_CRASH_STORE is where history and what a pipeline writes are: `directory`, `s3`, or both, with a comma.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

import psutil
import pytest

from headrace.spark.pipelines.__main__ import main
from tests.threads import joined
from tools.servers.s3_server import BUCKET, S3Server

LOOK_S: Final = 0.002
WAIT_S: Final = 600.0
MORE_ROUNDS_MAX: Final = 5
KINDS: Final = ("told", "file", "putting", "commit")
VICTIMS: Final = ("all", "driver", "java")
STORE: Final = "store"
WORKER: Final = "worker"
ROOT: Final = Path(__file__).resolve().parents[2]


def stores(default: str) -> list[str]:
    """Where a test is to run."""
    return os.environ.get("HEADRACE_CRASH_STORE", default).split(",")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where history is, and what a pipeline writes: below one directory, or on a server."""

    history: str
    """A store's URL."""
    written: str
    """A path or URL."""
    files: Path
    """The store as a directory: the server keeps a file for each object."""
    server: S3Server | None = None

    @classmethod
    def of(cls, kind: str, root: Path, name: str, request: pytest.FixtureRequest) -> Place:
        """One of `stores`; `name` is what is written."""
        assert kind in ("directory", "s3"), f"HEADRACE_CRASH_STORE knows no {kind}"
        if kind == "directory":
            history = f"file://{root / 'world' / 'store'}"
            return cls(history=history, written=str(root / name), files=root / name)
        server: S3Server = request.getfixturevalue("own_s3")
        files = server.objects / BUCKET / name
        return cls(history=server.url(), written=server.url(name), files=files, server=server)

    def kinds(self, kinds: Sequence[str]) -> Sequence[str]:
        """Moments that can be seen here: what a server has not whole yet has no name."""
        return kinds if self.server is None else [kind for kind in kinds if kind != "putting"]

    def victim(self, number: int) -> str:
        """Of a round."""
        victims = VICTIMS if self.server is None else (*VICTIMS, STORE)
        return victims[number % len(victims)]

    def first_blow(self, number: int, running: PipelineProcess, random: Random) -> list[str]:
        """Kill a worker in the middle of a round; its task is tried again. In every second round the store is killed,
        too. It is back at once, without the requests under way. Returns the names of the dead."""
        died = [WORKER] if running.kill_worker(random) else []
        if self.server is not None and number % 2 == 0:
            self.server.kill()
            self.server.start()
            died.append(STORE)
        return died

    def last_blow(self, victim: str, running: PipelineProcess) -> int:
        """At the end of a round; the exit code. A store is gone until the pipeline has given up by itself."""
        if victim != STORE:
            {"all": running.kill_all, "driver": running.kill_driver, "java": running.kill_java}[victim]()
            return running.wait()
        assert self.server is not None
        self.server.kill()
        code = running.wait()
        self.server.start()
        return code

    def tells_secrets(self, log: Path) -> bool:
        """Whether a log has credentials of the store in it."""
        environment = {} if self.server is None else self.server.environment
        secrets = [value for name, value in environment.items() if "KEY" in name]
        assert bool(secrets) == (self.server is not None)
        said = log.read_text()
        return any(secret in said for secret in secrets)


class PipelineProcess:
    """``headrace pipeline run FILE --json``, in a process group of its own. A context manager."""

    def __init__(self, file: Path, log: Path, *more: str, module: str = "headrace.spark.pipelines") -> None:
        """`module`: another program that takes such arguments."""
        self._log = log.open("ab")
        self.commits = 0
        self._changed = threading.Condition()
        places = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(file), "--json", *more],
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            text=True,
            env={**os.environ, "PYTHONPATH": places},
        )
        self._teller = threading.Thread(target=self._listen, daemon=True)
        self._teller.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if json.loads(line)["event"] == "commit":
                with self._changed:
                    self.commits += 1
                    self._changed.notify_all()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        joined(self._teller, WAIT_S)
        return code

    def until(self, happened: Callable[[], bool]) -> bool:
        """Look often; whether it did before the process ended."""
        pause = threading.Event()
        while not self.ended:
            if happened():
                return True
            pause.wait(LOOK_S)
        return False

    def kill_all(self) -> None:
        """Driver, Java and workers at one time, as when a machine dies."""
        for each in _tree(self.process.pid):
            _kill(each)
        self.kill_driver()

    def kill_driver(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def kill_java(self) -> None:
        """In which executors are, on local[N]."""
        for each in self._named("java"):
            _kill(each)

    def kill_worker(self, random: Random) -> bool:
        """One Python worker, or the daemon that they come from; False where there is none."""
        java = self._named("java")
        found = [each for pid in java for each in _tree(pid)]
        if found:
            _kill(random.choice(found))
        return bool(found)

    def _named(self, name: str) -> list[int]:
        found = []
        for pid in _tree(self.process.pid):
            try:
                if psutil.Process(pid).name().startswith(name):
                    found.append(pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.ended:
            self.kill_all()
        self._teller.join(WAIT_S)  # Java of a driver that is dead is no child of it any more, and ends by itself
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        joined(self._teller)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


def _tree(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def last_run(file: Path, log: Path, place: Place, request: pytest.FixtureRequest, *, apart: bool) -> int:
    """Run the pipeline until it has nothing left to do; the exit code.

    `apart`: in a process and a Java of its own. Otherwise it runs here, on the session that all tests share.
    """
    if apart:
        with PipelineProcess(file, log) as running:
            return running.wait()
    spark, patch = request.getfixturevalue("spark"), request.getfixturevalue("monkeypatch")
    for name, value in ({} if place.server is None else place.server.environment).items():
        patch.setitem(spark.sparkContext.environment, name, value)  # the workers'; own_s3 has set that of this process
    terminates = signal.getsignal(signal.SIGTERM)
    try:
        with log.open("a") as said, redirect_stderr(said):
            return main([str(file), "--json"])
    finally:
        signal.signal(signal.SIGTERM, terminates)
        spark.sparkContext.setLogLevel("OFF")


def numbered(count: int, hits: Callable[[], int], *, first: int = 0) -> Iterator[int]:
    """The numbers of so many rounds. MORE_ROUNDS_MAX more follow where no kill came before a run was over."""
    yield from range(first, first + count)
    for number in range(first + count + 1, first + count + 1 + MORE_ROUNDS_MAX):
        if hits():
            return
        yield number


def moments(
    path: Path, running: PipelineProcess, random: Random, kinds: Sequence[str] = KINDS
) -> tuple[str, Callable[[], bool]]:
    """Something to wait for, by name: a commit that is told, a file that is there, or one that is being put."""
    kind = random.choice(kinds)
    count = random.randrange(1, 4)
    if kind == "told":
        return f"{count} commits are told", lambda: running.commits >= count
    if kind == "putting":
        seen = {*names(path / ".incoming")}
        return "a put has begun", lambda: bool({*names(path / ".incoming")} - seen)
    place = path / ("data" if kind == "file" else "_headrace_progress")
    before = len(names(place))
    return f"{count} more in {place.name}", lambda: len(names(place)) >= before + count


def names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
