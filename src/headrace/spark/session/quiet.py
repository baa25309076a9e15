"""Keeps what Java says at its start off the terminal, where a program tells of its failures itself.

`quiet.properties` keeps Java's log off. Three lines come beside any log: Spark asks for an incubating module, of which
Java warns, and Spark tells how to change the log's level. All else that Java writes comes through.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

LOG: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('quiet.properties')}"
"""Java option that keeps Spark's log off the terminal."""
NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"Setting default log level to",
    b"To adjust logging level use",
)
STDERR: Final = 2


@contextmanager
def quietly() -> Iterator[None]:
    """Processes that start within have a standard error without the lines that begin as NOISE."""
    reads, writes = os.pipe()
    ours = os.dup(STDERR)
    Thread(target=_copy, args=(reads, ours), name="standard error of Java", daemon=True).start()
    sys.stderr.flush()
    os.dup2(writes, STDERR)
    os.close(writes)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, STDERR)


def _copy(reads: int, ours: int) -> None:
    with os.fdopen(reads, "rb") as lines:
        for line in lines:
            if not line.startswith(NOISE):
                os.write(ours, line)
