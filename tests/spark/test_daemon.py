"""The daemon of a session: what its workers begin with, and what they say when Java lets them go."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from headrace.spark.session import LOCAL_SETTINGS, daemon
from tests.spark.world import random_batch, world

DEADLINE_S = 150
SAID = "BrokenPipeError"


READS = """
import json, sys
from headrace.spark.options import parse_options
from headrace.spark.read.columns import Columns
from headrace.spark.source import HeadraceReader

reader = HeadraceReader(parse_options(json.loads(sys.argv[1]), streaming=False), Columns.select(None, headers=False))
tasks = reader.partitions()
before = set(sys.modules)
assert sum(batch.num_rows for task in tasks for batch in reader.read(task))
print(*set(sys.modules) - before)
"""
"""A program that reads a topic as Spark's driver and workers do, and tells what reading has imported after planning."""


def loaded_ahead(module: str) -> tuple[int, set[str]]:
    """How many threads a daemon for workers of this module has before it forks, and what it has imported."""
    ask = (
        "import os, sys; from headrace.spark.session import daemon\n"
        "os.environ.update(daemon.ALONE); daemon.load_ahead(sys.argv[1]); print(daemon.threads(), *sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", ask, module], capture_output=True, text=True, check=True)
    threads, *modules = said.stdout.split()
    return int(threads), set(modules)


def java_side(directory: Path) -> dict[str, str]:
    """The environment that Java gives a daemon over a Unix socket in this directory."""
    return {**os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory)}


def worker_that_is_let_go(daemon: str, directory: Path) -> str:
    """Standard error of a worker that Java starts and whose connection it then closes, idle for too long."""
    environment = java_side(directory) | {"SPARK_REUSE_WORKER": "1", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    command = [sys.executable, "-m", daemon, "pyspark.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        (length,) = struct.unpack(">i", process.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as java:
            java.settimeout(DEADLINE_S)
            java.connect(process.stdout.read(length))
            (pid,) = struct.unpack(">i", java.recv(4, socket.MSG_WAITALL))
            worker = os.pidfd_open(pid)
        ended, _, _ = select.select([worker], [], [], DEADLINE_S)
        os.close(worker)
        assert ended
        _, told = process.communicate(timeout=DEADLINE_S)
    return told.decode()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system does not tell of another's children")
def test_a_worker_that_java_lets_go_says_nothing(tmp_path: Path) -> None:
    ours = LOCAL_SETTINGS["spark.python.daemon.module"]
    assert [SAID in worker_that_is_let_go(daemon, tmp_path) for daemon in (ours, "pyspark.daemon")] == [False, True]


@pytest.mark.parametrize("module", ["pyspark.worker", "pyspark.sql.worker.plan_data_source_read"])
def test_a_daemon_that_has_imported_what_its_workers_need_has_no_thread_to_lose_at_a_fork(module: str) -> None:
    threads, modules = loaded_ahead(module)
    assert threads == 1
    assert {module, "pyarrow", "headrace.spark.source"} <= modules
    assert ("numba" in modules) == (module == daemon.TASKS)


def test_a_task_imports_nothing_that_its_daemon_has_not(tmp_path: Path) -> None:
    """A module that it has not costs its time again in each worker."""
    with world(tmp_path / "world") as made:
        made.create("t", 1)
        made.produce("t", [(0, random_batch(Random(1)))])
        read = [sys.executable, "-c", READS, json.dumps({"bootstrap": made.bootstrap, "topic": "t"})]
        imported = set(subprocess.run(read, capture_output=True, text=True, check=True).stdout.split())
    _, ahead = loaded_ahead(daemon.TASKS)
    assert "numba" in imported
    assert {name for name in imported - ahead if name.startswith("headrace.")} == set()


CHANCES = """
import socket, sys
from headrace.spark.session import daemon

def worker(sock, authenticated):
    import numpy, random
    sock.sendall(b"%.17f %.17f\\n" % (numpy.random.random(), random.random()))
    return 0

daemon.worker = worker
daemon.main()
"""


def test_two_workers_draw_other_numbers(tmp_path: Path) -> None:
    """Each is a copy of one process that has imported numpy."""
    command = [sys.executable, "-c", CHANCES, "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=java_side(tmp_path)) as process:
        assert process.stdout is not None
        (length,) = struct.unpack(">i", process.stdout.read(4))
        place = process.stdout.read(length)
        drawn = [numbers_of(place) for _ in range(2)]
        process.communicate(timeout=DEADLINE_S)
    assert not set(drawn[0]) & set(drawn[1]), drawn


def numbers_of(place: bytes) -> list[str]:
    """The numbers that a worker sends behind its process id."""
    with socket.socket(socket.AF_UNIX) as java:
        java.settimeout(DEADLINE_S)
        java.connect(place)
        java.recv(4, socket.MSG_WAITALL)
        return java.makefile("rb").readline().decode().split()
