"""Drivers that are killed (kill -9) between preparing a batch and its end. The next run finishes it: each row once.

The short form kills one driver, right after its decision. HEADRACE_CRASH_ROUNDS is how many are killed, at each step in
turn (`make crash-spark ROUNDS=30`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.spark.exactly.dying_driver import ROWS, TASKS, run
from tests.spark.world import consumed, world
from tests.tiers import of_tier

ROUNDS = int(os.environ.get("HEADRACE_CRASH_ROUNDS", of_tier(short=1, long=30)))
STEPS = 6
"""Claim, list, confirm, commit, note, abort. A driver without a crash has no more."""
DECIDED = 3

pytestmark = pytest.mark.timeout(600)


def test_each_row_of_killed_drivers_is_there_once(tmp_path: Path) -> None:
    with world(tmp_path, **{"transaction.two.phase.commit.enable": "true"}) as made:
        made.create("killed", 1)
        for batch in range(ROUNDS):
            at = (DECIDED + batch) % STEPS
            given = [made.bootstrap, "killed", "q", str(batch), f"{batch:x}", str(at)]
            killed = subprocess.run([sys.executable, "-m", "tests.spark.exactly.dying_driver", *given], check=False)
            assert killed.returncode == -SIGKILL, f"it died at step {at}"
            run(made.bootstrap, "killed", "q", batch, f"{batch:x}a")
        found = Counter(row[6] for row in consumed(made.bootstrap, ["killed"]))
        wanted = [(batch, task, row) for batch in range(ROUNDS) for task in range(TASKS) for row in range(ROWS)]
        assert found == {b"%d-%d-%d" % each: 1 for each in wanted}
