"""One process that is asked in lines and answers each in one, and is killed where an answer was not waited for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

ENDS_S: Final = 60.0
"""For its end, once nothing more is asked."""


@contextmanager
def asked(process: subprocess.Popen[str]) -> Iterator[Callable[[str], str]]:
    """Yields a function that sends a line to the process and returns its answer. On return the process has ended."""

    def put(line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.poll() is None, "an earlier question was not answered"
        try:
            print(line, file=process.stdin, flush=True)
            return process.stdout.readline().strip()
        except BaseException:  # its answer would be the next one's
            process.kill()
            process.wait()
            raise

    try:
        yield put
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
