"""Write the table of docs/METRICS.md from the one table of metrics: python tools/generate_metric_docs.py [--check]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from headrace.broker.metrics.catalog import METRICS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "METRICS.md"
HEAD: Final = "| metric | kind | by | meaning |\n|---|---|---|---|\n"


def page(before: str) -> str:
    """The page, with its table generated again."""
    begin, head, _ = before.partition(HEAD)
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.doc} |\n"
        for metric in METRICS.values()
    ]
    rows.append(
        "| `process_...`, `python_...` | | | Metrics of any process, by the Prometheus library: memory, processor "
        "time, open files, collections of garbage. |\n"
    )
    return begin + head + "".join(rows)


def main(arguments: list[str]) -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if "--check" in arguments:
        if before != after:
            print(f"{PAGE} is not what the table says: run tools/generate_metric_docs.py", file=sys.stderr)
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
