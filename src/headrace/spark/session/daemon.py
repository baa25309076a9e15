"""PySpark's daemon, changed so that its workers end silently when Java releases them (`spark.python.daemon.module`).

Spark closes its connection to a worker that was idle for a minute. PySpark's worker takes that end for a failure,
cannot report it, and fails. Over a Unix socket (`session.LOCAL_SETTINGS`) this happens at once, with two tracebacks on
the user's terminal beside a successful query. A failure while Java listens is reported to Java, as before.
"""

from __future__ import annotations

import socket
from typing import Final

from pyspark import daemon

LET_GO: Final = 1
"""A worker's exit code that makes the daemon end its process."""

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """One round of a worker process, as PySpark does it."""
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:  # Java is gone: nothing can be reported
        return LET_GO


def main() -> None:
    """Serve Java until it closes this process's standard input."""
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
