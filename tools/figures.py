"""The tables of figures in README.md, made from benchmarks/results: `python tools/figures.py`, or `--check`.

Each case shows its last kept outcome, in the table of the broker that was measured beside Headrace; what is not in the
results is not in the README.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = ROOT / "README.md"
RESULTS: Final = ROOT / "benchmarks" / "results"
BEGIN: Final = "<!-- figures: made by tools/figures.py -->"
END: Final = "<!-- end of figures -->"
BESIDE: Final = {
    "kafka": "Apache Kafka",
    "kafka-3": "Apache Kafka, three brokers",
    "kafka-no-delay": "Apache Kafka, groups, no initial delay",
    "kafka-with-delay": "Apache Kafka, groups, initial delay of 3 s",
    "headrace-without-journal": "Headrace without its journal",
}
"""Whom a table is of, by name in the results, in the order of the tables."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the table fits the results")
    options = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END), re.DOTALL)
    made = pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text)
    if options.check and made != text:
        print("README.md does not show what is in benchmarks/results: run `python tools/figures.py`.")
        return 1
    README.write_text(made, encoding="utf-8")
    return 0


def table() -> str:
    paths = sorted(RESULTS.glob("*.jsonl"))
    outcomes = [json.loads(path.read_text(encoding="utf-8").splitlines()[-1]) for path in paths]
    if not outcomes:
        return "\nNothing has been kept yet.\n"
    found = ""
    for name, label in BESIDE.items():
        rows = [_row(outcome, name) for outcome in outcomes if name in outcome["rivals"]]
        if rows:
            found += f"\n| case | Headrace | {label} | ratio |\n|---|---|---|---|\n" + "".join(rows)
    return found


def _row(outcome: dict[str, Any], beside: str) -> str:
    ours = next(name for name in outcome["rivals"] if name != beside)
    theirs = _side(outcome, beside)
    return f"| {outcome['title']} | {_side(outcome, ours)} | {theirs} | {outcome['ratio']:.2f} |\n"


def _side(outcome: dict[str, Any], name: str) -> str:
    rival = outcome["rivals"][name]
    median = rival["median"]
    shown = f"{median:,.0f}" if median >= 1000 else f"{median:,.1f}" if median >= 10 else f"{median:.3f}"
    return f"{shown} {outcome['unit']}, {rival['durability']}"


if __name__ == "__main__":
    sys.exit(main())
