"""The tables of figures in README.md, made from benchmarks/results: `python tools/figures.py`, or `--check`.

Each case shows its last kept outcome, in the table of the broker that was measured beside Headrace; what is not in the
results is not in the README.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
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
WITH_STORE: Final = "headrace-3-store"
"""Who has partitions moved: these have a table of their own, with what a move costs."""
MOVES: Final = {
    "rate": ("until it is over, ms", "{:,.0f}"),
    "copied_mb": ("copied between brokers, MB", "{:,.1f}"),
    "stored_mb": ("written to the store, MB", "{:,.1f}"),
    "pause_ms": ("longest pause of the producer, ms", "{:,.0f}"),
}
"""Its columns."""
SPARK: Final = "headrace-store"
"""Who is read by Spark: these have a table of their own."""


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
        rivals = [outcome for outcome in outcomes if not {WITH_STORE, SPARK} & {*outcome["rivals"]}]
        rows = [_row(outcome, name) for outcome in rivals if name in outcome["rivals"]]
        if rows:
            found += f"\n| case | Headrace | {label} | ratio |\n|---|---|---|---|\n" + "".join(rows)
    found += _moves([outcome for outcome in outcomes if WITH_STORE in outcome["rivals"]])
    return found + _spark([outcome for outcome in outcomes if SPARK in outcome["rivals"]])


def _moves(outcomes: list[dict[str, Any]]) -> str:
    """Each with its two rivals, one below the other."""
    if not outcomes:
        return ""
    head = "| case | who | " + " | ".join(label for label, _ in MOVES.values()) + " |"
    outcomes = sorted(outcomes, key=lambda outcome: outcome["rivals"]["kafka-3"]["median"])
    rows = [_cost(outcome, name) for outcome in outcomes for name in outcome["rivals"]]
    return f"\n{head}\n{'|---' * (2 + len(MOVES))}|\n" + "".join(rows)


def _spark(outcomes: list[dict[str, Any]]) -> str:
    """One query after the other."""
    if not outcomes:
        return ""
    head = "| Spark, `local[2]` | Headrace | Spark's source for Kafka | ratio |\n|---|---|---|---|\n"
    rows = []
    for outcome in sorted(outcomes, key=lambda outcome: str(outcome["case"])):
        ours, theirs = (f"{_short(outcome['rivals'][name]['median'])} {outcome['unit']}" for name in (SPARK, "kafka"))
        rows.append(f"| {outcome['title']} | {ours} | {theirs} | {outcome['ratio']:.2f} |\n")
    return f"\n{head}{''.join(rows)}"


def _cost(outcome: dict[str, Any], name: str) -> str:
    runs = [run | run["others"] for run in outcome["runs"] if run["rival"] == name]
    told = [shape.format(statistics.median(run[key] for run in runs)) for key, (_, shape) in MOVES.items()]
    who = "Headrace" if name == WITH_STORE else BESIDE[name]
    return f"| {outcome['title']} | {who}, {outcome['rivals'][name]['durability']} | {' | '.join(told)} |\n"


def _row(outcome: dict[str, Any], beside: str) -> str:
    ours = next(name for name in outcome["rivals"] if name != beside)
    theirs = _side(outcome, beside)
    return f"| {outcome['title']} | {_side(outcome, ours)} | {theirs} | {outcome['ratio']:.2f} |\n"


def _side(outcome: dict[str, Any], name: str) -> str:
    rival = outcome["rivals"][name]
    return f"{_short(rival['median'])} {outcome['unit']}, {rival['durability']}"


def _short(median: float) -> str:
    return f"{median:,.0f}" if median >= 1000 else f"{median:,.1f}" if median >= 10 else f"{median:.3f}"


if __name__ == "__main__":
    sys.exit(main())
