"""Runs the simulator's swarms, one for each part, as many at once as there are processors.

The dearest part comes first, so that no processor is left with a long one at the end. Each line is marked with its
part. Exit code 0 where every seed of every part was sound; the first part that fails ends none of the others.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import deque
from typing import Final

from tools.run_tests import Marked

PARTS: Final = (
    ("tables", ("--cluster", "--part", "tables")),
    ("quorums", ("--cluster", "--part", "lost-quorums")),
    ("clusters", ("--cluster",)),
    ("copies", ("--cluster", "--part", "copies")),
    ("moves", ("--cluster", "--part", "moves")),
    ("rot", ("--cluster", "--part", "rot")),
    ("groups", ("--cluster", "--part", "groups")),
    ("transactions", ("--cluster", "--part", "transactions")),
    ("removals", ("--cluster", "--part", "removals")),
    ("redis", ("--cluster", "--part", "redis")),
    ("broker", ()),
)
"""The mark of each part, and its options of `python -m headrace.sim`."""
LIMIT_S: Final = 4 * 3_600


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.swarm", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed of each part")
    parser.add_argument("--runs", type=int, default=300, help="how many seeds of each part")
    options = parser.parse_args()
    left, codes = deque(PARTS), list[int]()

    def work() -> None:
        while left:
            name, about = left.popleft()
            seeds = ("--seed", str(options.seed), "--runs", str(options.runs))
            swarm = Marked(name, [[sys.executable, "-u", "-m", "headrace.sim", *about, *seeds]], limit_s=LIMIT_S)
            swarm.run()
            codes.extend(swarm.codes)

    workers = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
