"""Workers of a session: what they say when Java lets them go."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.session import LOCAL_SETTINGS

DEADLINE_S = 150
SAID = "BrokenPipeError"


def worker_that_is_let_go(daemon: str, directory: Path) -> str:
    """Standard error of a worker that Java starts and whose connection it then closes, idle for too long."""
    environment = {**os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory)}
    environment |= {"SPARK_REUSE_WORKER": "1", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
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
