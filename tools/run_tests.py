"""Runs the tests, in several processes at once.

The short tier runs every test in its short form. Its processes share a pool: each takes the next file of tests when it
is free (tests/pool.py). Tests with brokers and clients go first. Those that need nothing but a processor fill what the
others leave, and Spark's have one process with one Java. `--tier long` runs each check as often as the promises name.
`--tier fast` runs only the cores, in two processes, and `--tier native` those and the handlers (docs/TESTING.md).

All lines are marked with their process, and failures are listed again at the end. The seconds of each file are kept in
`var/tests`, and `--resume` leaves out those that passed in an earlier run of the same commit. A test that hangs prints
the stacks of all its threads, and its process is ended (tests/guard.py); the others run what it leaves. Exit code 0
where every file was run and all passed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO, cast

TESTS: Final = Path("tests")
MAKES_WAY: Final = 4
"""Niceness of a process that runs only what waits for nothing. Its tests have more time (tests/guard.py)."""
TIMED: Final = "timed"
PROCESSOR: Final = "processor"
SPARK: Final = "spark"
ALL_KINDS: Final = (TIMED, PROCESSOR, SPARK)
KINDS: Final[Mapping[str, Sequence[str]]] = {
    PROCESSOR: (
        "base",
        "controller",
        "coordinators",
        "metadata",
        "net",
        "raft",
        "replica",
        "security",
        "sim",
        "storage",
        "tier",
        "wire",
    ),
    SPARK: (
        "pipelines",
        "spark",
        "promises/history/test_sparks_rows_equal_a_consumers.py",
        "promises/test_every_client_reads_what_we_write.py",
    ),
    TIMED: ("pipelines/test_dying_java.py", "spark/test_connect.py", "spark/test_masters.py"),
}
"""Directories and files of each kind. A file has the kind of the longest path that is named here and leads to it.

All others are TIMED: their brokers and clients have to keep up with real time. Those of Spark that are TIMED start each
Java for themselves, so that they need not be where the shared one is.
"""
POOLED: Final[Mapping[str, tuple[int, Sequence[str]]]] = {
    "first": (0, (TIMED, PROCESSOR)),
    "second": (0, (TIMED, PROCESSOR)),
    "third": (0, (TIMED, PROCESSOR)),
    "fourth": (0, (TIMED, PROCESSOR)),
    "spark": (0, (SPARK, PROCESSOR)),
    "makes way": (MAKES_WAY, (PROCESSOR,)),
}
"""For each process: its niceness and the kinds of files that it takes, the preferred one first.

Tests with brokers and clients wait three quarters of their time, and so four of them keep two cores busy.
"""
LONG_POOLED: Final[Mapping[str, tuple[int, Sequence[str]]]] = {
    "first": (0, (TIMED, PROCESSOR)),
    "second": (0, (TIMED, PROCESSOR)),
    "spark": (0, (SPARK, PROCESSOR)),
    "makes way": (MAKES_WAY, (PROCESSOR,)),
}
"""Processes of the long tier. Its kills come under load that does not pause, and one of its tests fills two cores."""
LONGEST: Final = (
    "promises/test_any_broker_may_die.py",
    "interop/test_java.py",
    "broker/durable/test_behind_history.py",
    "promises/test_a_group_reads_everything_once_while_brokers_restart.py",
    "promises/test_a_replaced_quorum_loses_nothing.py",
    "broker/cluster/test_lost_quorum.py",
    "interop/test_suites.py",
    "promises/security/test_strangers_leave_nothing_behind.py",
    "promises/history/test_a_partition_that_lost_its_brokers_goes_on_behind_its_history.py",
    "broker/durable/test_compacted_history.py",
    "broker/durable/test_reading_history.py",
    "broker/moves/test_moves.py",
    "promises/test_a_full_disk_on_one_broker_loses_nothing.py",
    "cli/test_process.py",
    "broker/test_cluster.py",
    "pipelines/test_dying_java.py",
    "spark/test_connect.py",
    "pipelines/test_crash.py",
    "sim/cluster/transactions/test_transactions.py",
    "sim/cluster/test_groups.py",
    "sim/cluster/test_copies.py",
    "sim/cluster/test_clusters.py",
    "sim/test_swarm.py",
    "sim/cluster/test_tables.py",
    "sim/cluster/test_rot.py",
    "wire/test_java.py",
    "sim/cluster/test_moves.py",
    "sim/cluster/test_records.py",
    "storage/redis/test_redis_broker.py",
    "raft/test_chaos.py",
    "storage/log/compaction/test_log_compaction.py",
)
"""These files are taken before the others of their kind, in this order: one that is begun last keeps all waiting."""
POOL: Final = "HEADRACE_TEST_POOL"
"""Environment variable of a pooled process: the pool's directory, a colon, and the kinds of files that it takes."""
TAKEN: Final = "taken"
RAN: Final = "ran"
"""Directory of the pool with a JSON file for each file of tests that was run: its path, seconds and outcome."""
KEPT: Final = Path("var/tests")
"""Each tier has a file there, with the commit of its last run and the seconds of each file of tests."""
MOVED_SEEDS: Final = "moved-seeds.txt"
"""The file there with a line for each planted bug that had to be hunted (tests/sim/cluster/hunting.py)."""
FAST: Final[Mapping[str, Sequence[str]]] = {
    "cores": ("base", "controller", "coordinators", "metadata", "raft", "replica", "security", "wire"),
    "storage": ("storage",),
}
"""Directories of the fast tier, a process for each key: their tests start no broker and no client."""
NATIVE: Final[Mapping[str, Sequence[str]]] = {
    "wire": ("wire", "net", "replica", "test_native.py", "sim/test_both_roads.py"),
    "handlers": ("broker/handlers",),
    "partitions": ("broker/partitions", "promises/test_an_acknowledged_write_is_never_lost.py"),
    "copies": ("broker/replication",),
}
"""As FAST, of the tier that runs on the native road: all that its functions are a part of. Brokers wait most of the
time."""
NOT_FAST: Final = ("wire/test_java.py", "storage/redis")
"""These start Java, or Redis servers."""
LONG_TIMEOUT_S: Final = 3_600
"""Of each test in the long tier, where it has no limit of its own."""
LIMIT_S: Final = int(os.environ.get("HEADRACE_LIMIT_S", "2400"))
"""All tests of a process, and its end; LONG_LIMIT_S in the long tier. `make coverage` gives them more time."""
LONG_LIMIT_S: Final = 6 * 3_600
ABORTS_S: Final = 30
IN_MEMORY: Final = ("native", "short")
MEMORY: Final = Path("/dev/shm")
"""A file system in memory. The tests of these tiers have their directories there, but for those of tests/disk.py."""
MEMORY_BYTES_MIN: Final = 6 << 30
"""So much has to be free there, and of the machine's memory. Otherwise all directories are on the disk."""
SUMMARY: Final = "short test summary info"
HUNG: Final = "++++ Hung: "
"""The line of a test that tests/guard.py has ended begins with this."""
SLOWEST: Final = 15
"""Tests whose seconds are told at the end, of each process."""

PYTEST: Final = (sys.executable, "-u", "-X", "faulthandler", "-m", "pytest", f"--durations={SLOWEST}")


class Marked(threading.Thread):
    """Processes, one after the other, whose lines are told as they come, each with a mark."""

    def __init__(
        self,
        name: str,
        commands: Iterable[Sequence[str]],
        *,
        patience_s: float = ABORTS_S,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`commands`: each is asked for when the one before has ended. `patience_s`: for what one of them said last,
        after its end. `limit_s`: for each of them."""
        super().__init__(daemon=True)
        self.mark = f"{name:>10} | "
        self.codes: list[int] = []
        self.summary: list[str] = []
        self.hung: list[str] = []
        self._commands = commands
        self._patience_s = patience_s
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def run(self) -> None:
        for command in self._commands:
            if self._over:
                return
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",  # a test may print any bytes
            )
            output = cast("TextIO", self._process.stdout)
            teller = threading.Thread(target=self._tell, args=[output], daemon=True)
            teller.start()
            self.codes.append(_waited(self._process, self._limit_s))
            teller.join(self._patience_s)
            if teller.is_alive():  # a process of a test's that is left may hold the pipe
                print(f"{self.mark}something else holds its output, of which the end may be missing", flush=True)

    def _tell(self, output: TextIO) -> None:
        """Each line as soon as it is whole; what comes from SUMMARY on is kept, too, and what hung."""
        summary = False
        with output:
            for line in output:
                print(f"{self.mark}{line}", end="", flush=True)
                if HUNG in line:
                    self.hung.append(line.strip())
                if summary := summary or SUMMARY in line:
                    self.summary.append(line.rstrip())

    def end(self) -> None:
        self._over = True
        if self._process is not None:
            self._process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/run_tests.py", description=__doc__)
    parser.add_argument("--tier", choices=("fast", "native", "short", "long"), default="short")
    parser.add_argument("--resume", action="store_true", help="leave out what passed in the last run of this commit")
    options = parser.parse_args()
    tier: str = options.tier
    os.environ["HEADRACE_TIER"] = "short" if tier == "native" else tier
    began = time.monotonic()
    (KEPT / MOVED_SEEDS).unlink(missing_ok=True)
    some = {"fast": FAST, "native": NATIVE}.get(tier)
    code = _run_pool(tier, resume=options.resume) if some is None else _run_some(tier, some)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with suppress(FileNotFoundError):
        print("Hunting takes minutes, `make plants` notes other seeds:", (KEPT / MOVED_SEEDS).read_text(), sep="\n")
    seconds = f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor"
    print(f"tier {tier}: {seconds}, exit code {code}", flush=True)
    return code


def _run_some(tier: str, processes: Mapping[str, Sequence[str]]) -> int:
    left_out = [f"--ignore={TESTS / each}" for each in NOT_FAST]
    with _in_memory(tier) as memory:
        commands = {
            name: [*PYTEST, *(str(TESTS / each) for each in tests), *left_out, *_own(name), *_files_in(memory, name)]
            for name, tests in processes.items()
        }
        return _joined([Marked(name, [command]) for name, command in commands.items()])


def _run_pool(tier: str, *, resume: bool) -> int:
    passed = [each for each in _kept(tier) if each["passed"]] if resume else []
    pooled, limit_s = (LONG_POOLED, LONG_LIMIT_S) if tier == "long" else (POOLED, LIMIT_S)
    with tempfile.TemporaryDirectory() as directory, _in_memory(tier) as memory:
        pool = Path(directory)
        fill(pool, without={each["path"] for each in passed})
        try:
            commands = {name: [*_of_pool(pool, pooled[name], name), *_files_in(memory, name)] for name in pooled}
            code = _joined([Marked(name, [command], limit_s=limit_s) for name, command in commands.items()])
        finally:
            ran = [json.loads(each.read_text()) for each in (pool / RAN).iterdir()]
            _keep(tier, [*passed, *ran])
        for path in sorted(ran, key=lambda each: each["processor_s"], reverse=True)[:SLOWEST]:
            print("{processor_s:7.1f} s of processor in {seconds:6.1f} s: {path}".format(**path))
        if left := [path for kind in ALL_KINDS for path in remaining(pool, kind)]:
            print("no process was left to run these:", *left, sep="\n", flush=True)
        return code or int(bool(left))


@contextmanager
def _in_memory(tier: str) -> Iterator[Path | None]:
    """A directory in memory until the end of the block; None where the tests' files are to be on the disk."""
    if tier not in IN_MEMORY or not _has_room():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="headrace-", dir=MEMORY) as directory:
        yield Path(directory)


def _has_room() -> bool:
    with suppress(OSError):
        available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
        bytes_left = shutil.disk_usage(MEMORY).free, int(available[1]) * 1024 if available else 0
        return min(bytes_left) >= MEMORY_BYTES_MIN
    return False


def _files_in(memory: Path | None, name: str) -> list[str]:
    """Options with which a process has its tests' directories there, each until its test has passed."""
    if memory is None:
        return []
    return [f"--basetemp={memory / name.replace(' ', '-')}", "-o", "tmp_path_retention_policy=failed"]


def _commit() -> str | None:
    """The commit of the sources; None where they are of none, for something was changed."""
    said = [
        subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    ]
    clean = all(each.returncode == 0 for each in said) and not said[1].stdout
    return said[0].stdout.strip() if clean else None


def _kept(tier: str) -> list[dict[str, Any]]:
    """The files of the last run of this tier, where it ran on this commit; none otherwise."""
    with suppress(FileNotFoundError):
        kept = json.loads((KEPT / f"{tier}.json").read_text())
        if kept["commit"] is not None and kept["commit"] == _commit():
            return list(kept["files"])
    return []


def _keep(tier: str, files: Sequence[Mapping[str, Any]]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{tier}.json").write_text(json.dumps({"commit": _commit(), "files": files}, indent=1))


def _of_pool(pool: Path, about: tuple[int, Sequence[str]], name: str) -> Sequence[str]:
    """The command of a process of the pool."""
    nice, kinds = about
    command = ["env", f"{POOL}={pool}:{','.join(kinds)}", "nice", "-n", str(nice), *PYTEST, *_own(name)]
    return [*command, f"--timeout={LONG_TIMEOUT_S}"] if os.environ["HEADRACE_TIER"] == "long" else command


def fill(pool: Path, without: Collection[str] = ()) -> None:
    """Put every file of tests into the pool, `without` these."""
    first = {str(TESTS / each): at for at, each in enumerate(LONGEST)}
    paths = sorted(
        {str(path) for path in TESTS.rglob("test_*.py")}.difference(without),
        key=lambda path: (first.get(path, len(first)), path),
    )
    for kind in (*ALL_KINDS, TAKEN, RAN):
        (pool / kind).mkdir()
    for at, path in enumerate(paths):
        (pool / kind_of(Path(path)) / f"{at:04}").write_text(path)


def kind_of(path: Path) -> str:
    """Of a file of tests, by its path."""
    for place in (path, *path.parents[: -len(TESTS.parts) - 1]):
        for kind, places in KINDS.items():
            if place.relative_to(TESTS).as_posix() in places:
                return kind
    return TIMED


def take(pool: Path, kind: str) -> str | None:
    """The next file of this kind that no other process has taken; None where there is none left."""
    for entry in sorted((pool / kind).iterdir()):
        mine = pool / TAKEN / entry.name
        try:
            entry.rename(mine)
        except FileNotFoundError:
            continue  # another process was quicker
        return mine.read_text()
    return None


def remaining(pool: Path, kind: str) -> list[str]:
    """Files of this kind that nobody has taken, in their order."""
    left = []
    for entry in sorted((pool / kind).iterdir()):
        with suppress(FileNotFoundError):  # it is being taken
            left.append(entry.read_text())
    return left


def _own(name: str) -> list[str]:
    """Options of a process: its cache, and no part of all tests behind each line, for it runs but its share."""
    return ["-o", f"cache_dir=.pytest_cache/{name.replace(' ', '-')}", "-o", "console_output_style=classic"]


def _joined(processes: Sequence[Marked]) -> int:
    """Runs them all at once; the first exit code that is not 0."""
    for each in processes:
        each.start()
    try:
        for each in processes:
            each.join()
    finally:
        for each in processes:
            each.end()
    for each in processes:
        if any(each.codes):
            print(f"of those of {each.mark.strip(' |')}:", *each.summary, *each.hung, sep="\n", flush=True)
    return next((code for each in processes for code in each.codes if code), 0)


def _waited(process: subprocess.Popen[Any], limit_s: float) -> int:
    """Its exit code; where it goes on after `limit_s` it is aborted, and its fault handler tells what it was at. Its
    last lines are still to be read."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"after {limit_s} s these are aborted", flush=True)
        process.send_signal(signal.SIGABRT)
        try:
            return process.wait(ABORTS_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    ended_with = main()
    sys.stdout.flush()
    os._exit(ended_with & 0xFF)  # a thread that still reads would be in the way of any other end
