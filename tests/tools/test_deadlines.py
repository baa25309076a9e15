"""No test gives what it waits for less than a minute: a machine may be slow, and another's turn long.

A limit is there to end a wait in vain, never to tell fast from slow. Where a test wants that, it runs on virtual time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent.parent
LEAST_S: Final = 60
OF_A_TEST_S: Final = 180
"""The limit that each test has where it names none."""
LIMITS: Final = re.compile(
    r"asyncio\.timeout\((?P<block>[0-9.]+)\)"
    r"|asyncio\.wait_for\(.*, (?P<wait>[0-9.]+)\)"
    r"|assert [\w.]+\.wait\((?P<event>[0-9.]+)\)"
    r"|to_thread\([\w.]+\.wait, (?P<thread>[0-9.]+)\)"
    r"|(?:process|reader|writer)\.wait\((?P<process>[0-9.]+)\)"
    r"|\.result\((?P<result>[0-9.]+)\)"
    r"|communicate\(timeout=(?P<output>[0-9.]+)\)"
    r"|request_timeout=(?P<request>[0-9.]+)\)"
    r"|(?:DEADLINE|ENDS|ENDED|TIMEOUT|LIMIT)_S(?:: Final)? = (?P<named>[0-9.]+)$"
)
EXEMPT: Final = ("sim/", "broker/kit/test_lease.py", "tools/test_deadlines.py", "tools/test_guard.py")
"""Folders and files on virtual time, and files that write of limits."""
IN_VAIN: Final = (
    "broker/handlers/test_data_wire.py: await asyncio.wait_for(silent, 0.2)",
    "tools/test_warm.py: process.communicate(timeout=0.1)",
)
"""Waits for what is not to come: a slow machine makes them weaker, never wrong."""


def limits() -> Iterator[str]:
    """Yield each line with a limit of less than LEAST_S, by its file."""
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name.startswith(EXEMPT):
            continue
        for line in path.read_text().splitlines():
            for kind, given in (found.groupdict() if (found := LIMITS.search(line)) else {}).items():
                if given is not None and float(given) < (OF_A_TEST_S if kind == "test" else LEAST_S):
                    yield f"{name}: {line.strip()}"


def test_what_a_test_waits_for_has_a_minute() -> None:
    assert set(limits()) == set(IN_VAIN)
