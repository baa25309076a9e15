"""A cleaning in a process of its own: `python -m headrace.storage.log.compaction.child`.

It reads a job from standard input and writes the result to standard output, each as one line of JSON.

Promises:
- It runs at the lowest priority and at most at the job's rate.
- It ends at once when standard input ends, so it never outlives its broker.
- It syncs and renames nothing: its files count only once the broker says so.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import CorruptData
from headrace.storage.disk import LocalDisk
from headrace.storage.log.compaction.cleaning import Cleaned, CleanedFile, CleaningJob, SourceSegment, clean
from headrace.wire.transactions import AbortedTransaction

NICE: Final = 10
PACE_BYTES: Final = 256 * 1024
"""Bytes between two readings of the clock."""


def encode_job(job: CleaningJob, bytes_per_second: float) -> bytes:
    fields = dataclasses.asdict(job) | {"directory": str(job.directory), "remembered": sorted(job.remembered)}
    return json.dumps({"job": fields, "bytes_per_second": bytes_per_second}).encode() + b"\n"


def decode_cleaned(line: bytes) -> Cleaned:
    """Returns the child's result. Raises OSError or CorruptData, as the child met it, and OSError where the answer is
    incomplete because the child was ended.
    """
    if not line.endswith(b"\n"):
        raise OSError("The process that compacts ended before it had said what came of it.")
    answer = json.loads(line)
    if "corrupt" in answer:
        raise CorruptData(answer["corrupt"])
    if "failed" in answer:
        raise OSError(answer["errno"], answer["failed"])
    files = tuple(CleanedFile(**file) for file in answer["files"])
    return Cleaned(clean_to=answer["clean_to"], files=files, bare=tuple(answer["bare"]))


def _decode_job(line: bytes) -> tuple[CleaningJob, float]:
    message = json.loads(line)
    fields: dict[str, Any] = message["job"]
    fields["directory"] = Path(fields["directory"])
    fields["sources"] = tuple(SourceSegment(**source) for source in fields["sources"])
    fields["remembered"] = frozenset(fields["remembered"])
    fields["aborted"] = tuple(AbortedTransaction(*each) for each in fields["aborted"])
    return CleaningJob(**fields), message["bytes_per_second"]


def pacer(
    bytes_per_second: float, *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Callable[[int], None]:
    """Returns a function that is called with the bytes as they are handled. It waits so that they do not exceed this
    rate.
    """
    started, total, looked_at = now(), 0, 0

    def pace(size: int) -> None:
        nonlocal total, looked_at
        total += size
        if total - looked_at >= PACE_BYTES:
            looked_at = total
            ahead = total / bytes_per_second - (now() - started)
            if ahead > 0:
                sleep(ahead)

    return pace


def _end_with_input() -> None:
    """End the process with its standard input, which the broker keeps open as long as it lives and wants the result."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    os.nice(NICE)
    job, bytes_per_second = _decode_job(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        answer = dataclasses.asdict(clean(LocalDisk(), job, pace=pacer(bytes_per_second)))
    except CorruptData as error:
        answer = {"corrupt": str(error)}
    except OSError as error:
        answer = {"failed": str(error), "errno": error.errno}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread may hold standard input, on which a usual end would wait


if __name__ == "__main__":
    main()
