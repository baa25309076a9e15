"""Writes docs/BENCHMARKS.md and README.md's table from benchmarks/results: `python tools/figures.py`, or `--check`.

Each case shows the outcome that was kept last. A case of the results that no group of the page takes is an error. So is
a row of the README that the results do not hold.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = ROOT / "README.md"
PAGE: Final = ROOT / "docs" / "BENCHMARKS.md"
RESULTS: Final = ROOT / "benchmarks" / "results"
BEGIN: Final = "<!-- figures: made by tools/figures.py -->"
END: Final = "<!-- end of figures -->"
EVEN: Final = 0.05
"""Ratios this close to 1 count as even: single runs differ by more."""

Outcome = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One section of the page: cases of one kind, and what bounds them."""

    title: str
    bound: str
    cases: tuple[str, ...]
    """Patterns of case names; the first group that takes a case has it."""


GROUPS: Final = (
    Group(
        title="Produce to one broker",
        bound="Checking records bounds 100 B; the client bounds 1 KB: its compilers take more than "
        "a third of both processors in a short run. "
        "With fsync, each round of requests also waits 250 us for one sync of the journal. "
        "One request in flight is bounded by the network's own 0.064 ms and by 0.04 ms of the broker's Python.",
        cases=("produce-*", "single-*"),
    ),
    Group(
        title="The native road beside the floor of any broker",
        bound="Beside is no broker, but an event loop that writes each request to a file and answers. "
        "With three replicas it is three of them. Nothing is checked or remembered "
        "(`benchmarks/load/floor.py`).",
        cases=("native-floor-*",),
    ),
    Group(
        title="The native road",
        bound="The same cases as elsewhere on this page, with hot functions compiled (`make native`). "
        "Clients bound produce of 1 KB. More than half of a request's processor time is the kernel's then. "
        "Memory and the time until ready stand beside the same broker in pure Python.",
        cases=("native-*",),
    ),
    Group(
        title="Fetch from one broker",
        bound="One consumer is bounded by itself. Ten raw consumers are bounded by copying: "
        "a fetch copies each byte twice, where Kafka's `sendfile` copies it once.",
        cases=("fetch-*", "end-to-end"),
    ),
    Group(
        title="Many connections, and a start",
        bound="Many connections are bounded by the one event loop, which has one processor full. "
        "Kafka's threads use 1.1 of the two processors. A start is bounded by importing Python modules.",
        cases=("mixed", "start"),
    ),
    Group(
        title="The journal",
        bound="Without the journal each dirty log needs a sync of its own; with it all logs share one.",
        cases=("journal-*",),
    ),
    Group(
        title="Three brokers, three replicas",
        bound="Three brokers and the client share two processors. "
        "One request in flight waits for two rounds of messages and, with fsync, for three disks side by side.",
        cases=("replicated-*",),
    ),
    Group(
        title="Metadata and failover of three brokers",
        bound="A change of the metadata waits for one sync on a majority. A kill is noticed by the closed connection. "
        "A stopped process (SIGSTOP) is noticed only when its session ends, after 6 seconds.",
        cases=("controller-failover", "create-topics*", "failover-*"),
    ),
    Group(
        title="Consumer groups of 100 members",
        bound="Joins and leaves are bounded by the members' heartbeat interval (100 ms here), deaths by their session. "
        "Commits are bounded by the broker's Python (49 us each) and, with fsync, by the sync that they share.",
        cases=("groups-*",),
    ),
    Group(
        title="Transactions on three brokers",
        bound="One producer waits for each commit, so rounds of messages bound it, and with fsync their disks do. "
        "Kafka refuses the next transaction until the markers are written, and its client pauses before it asks again. "
        "Headrace lets it wait for them. "
        "Many producers are bounded by librdkafka, which has a thread for each connection, and by two processors.",
        cases=("transactions-*",),
    ),
    Group(
        title="Security",
        bound="TLS of a produce or fetch is bounded by the client, and new connections by both sides' handshakes. "
        "An authorizer's cost is that of one look into what was granted before, for each request.",
        cases=("secured-*", "authorised-*"),
    ),
    Group(
        title="Moves of a partition",
        bound="A hand-over is bounded by six waits for the disk, and not by the size of the partition. "
        "Kafka's reassignment copies the whole partition between brokers.",
        cases=("move-*",),
    ),
    Group(
        title="Spark reads and tables, records of 100 B",
        bound="Java bounds these: turning Arrow's columns into Spark's rows is most of four sevenths of the time. "
        "Parquet by Spark's own writer is bounded by that writer, on either side. "
        "`materialise` writes Parquet in the Python workers, so its rows do not pass through Java.",
        cases=("spark-100b-*", "spark-hot-*", "spark-available-now"),
    ),
    Group(
        title="Spark reads and tables, records of 1 KB",
        bound="Unpacking and moving bytes bound these: reading 1 GB alone takes 1.2 s of both processors. "
        "Against a tuned Kafka source, the count is even and Spark's own Parquet writer is the slower part.",
        cases=("spark-1k-*",),
    ),
    Group(
        title="Spark writes, micro-batches, and a producer beside scans",
        bound="A write is bounded by the session; its rate differed by a factor of four between runs on other days. "
        "A micro-batch is bounded by Spark's two checkpoint files (70 of 100 ms). "
        "A producer beside a scan is bounded by the processors that the scan takes.",
        cases=("spark-write-*", "spark-micro-batch", "spark-beside-*", "spark-linear"),
    ),
)
ROWS: Final = {
    "produce-1k-page-cache": "produce records of 1 KB",
    "produce-100b": "produce records of 100 B",
    "produce-1k": "produce records of 1 KB, short run",
    "mixed": "200 connections, 2,000 partitions",
    "fetch-1g": "one consumer, 1 GB",
    "replicated-1k": "three replicas, 1 KB",
    "replicated-single": "three replicas, one request in flight",
    "failover-kill": "pause after kill -9 of a leader",
    "move-1gb": "move 1 GB to another broker",
    "spark-1k-lz4-table": "Spark: topic to Parquet table",
}
"""The rows of the README with their short names, losses among them."""
PRODUCING: Final = ("produce-*", "single-*", "mixed", "journal-*", "replicated-*", "end-to-end")
CHECKED_SINCE: Final = "2026-11-27"
"""Cases of PRODUCING that were kept before are of a broker that did not check each record: they bear UNCHECKED."""
UNCHECKED: Final = " †"
REDIS: Final = "redis-engine"
REDIS_BOUND: Final = (
    "A relay is the floor of a broker in Python: it sends one XADD for each batch, and answers when Redis does. "
    "It has the same client, five batches of 16 KB in flight, and the same Valkey, which syncs each answer. "
    "It checks nothing. The relay that checks does what no broker can leave out: CRC and records, the producer's epoch "
    "and sequence, and in Redis one function for each batch, which compares the leader's epoch and the end. "
    "A sink answers at once and keeps nothing. Bare Redis is a loop that pipelines XADD or XRANGE without a broker. "
    "An idempotent producer of librdkafka has one batch in flight, and keeps one of the two processors busy meanwhile: "
    "that row is of the time there and back."
)
REDIS_SIDES: Final = {
    "redis": "Redis engine",
    "bare": "bare Redis",
    "relay": "relay",
    "checking": "relay that checks",
    "sink": "sink",
    "local": "local logs",
    "kafka": "Kafka, page cache",
}
REDIS_FLOORS: Final = {"bare": "to bare Redis", "relay": "to a relay", "checking": "to one that checks"}
"""Those by which our rates and latencies are divided."""
REDIS_ROWS: Final = {
    "produce-1k": "produce 1 KB, MB/s",
    "produce-100b": "produce 100 B, MB/s",
    "produce-1k-idempotent": "produce 1 KB, idempotent, MB/s",
    "produce-1k-java": "produce 1 KB, idempotent, Java's client, MB/s",
    "produce-1k-java-one-in-flight": "produce 1 KB, idempotent, Java's client, one batch in flight, MB/s",
    "produce-1000-partitions": "produce 1 KB to 1,000 partitions, MB/s",
    "fetch-1k": "fetch 1 KB, MB/s",
    "fetch-100b": "fetch 100 B, MB/s",
    "p50-ms": "5,000 records/s of 1 KB, p50, ms",
    "p99-ms": "5,000 records/s of 1 KB, p99, ms",
    "produce-1k client ms/MB": "produce 1 KB: client's processor, ms for a MB",
    "produce-1k broker ms/MB": "produce 1 KB: broker's processor, ms for a MB",
    "produce-1k redis ms/MB": "produce 1 KB: Redis's processor, ms for a MB",
    "produce-1k-idempotent client ms/MB": "idempotent: client's processor, ms for a MB",
    "produce-1k-idempotent broker ms/MB": "idempotent: broker's processor, ms for a MB",
    "produce-1k-idempotent redis ms/MB": "idempotent: Redis's processor, ms for a MB",
    "produce-1000-partitions made s": "1,000 partitions: made after, s",
    "produce-1000-partitions more memory MB": "1,000 partitions: more memory of the broker, MB",
    "memory MB": "broker's memory at the end, MB",
}
MOVES: Final = {
    "rate": ("until it is over, ms", "{:,.0f}"),
    "copied_mb": ("copied between brokers, MB", "{:,.1f}"),
    "stored_mb": ("written to the store, MB", "{:,.1f}"),
    "pause_ms": ("longest pause of the producer, ms", "{:,.0f}"),
}
"""The costs of a move, beside its duration."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the tables fit the results")
    options = parser.parse_args()
    outcomes = kept()
    stale = [
        path.name
        for path, text in ((PAGE, page(outcomes)), (README, readme(outcomes)))
        if not written(path, text, write=not options.check)
    ]
    for name in stale if options.check else ():
        print(f"{name} does not show what is in benchmarks/results: run `python tools/figures.py`.")
    return 1 if stale and options.check else 0


def kept() -> dict[str, Outcome]:
    """The outcome of each case that was kept last, where it was run side by side. PERFORMANCE tells of the others."""
    paths = sorted(RESULTS.glob("*.jsonl"))
    last = {path.stem: json.loads(path.read_text(encoding="utf-8").splitlines()[-1]) for path in paths}
    return {name: outcome for name, outcome in last.items() if "rivals" in outcome}


def written(path: Path, figures: str, *, write: bool) -> bool:
    """Whether the page holds these figures already; puts them there if it is to."""
    text = path.read_text(encoding="utf-8")
    made = re.sub(re.escape(BEGIN) + r".*?" + re.escape(END), lambda _: f"{BEGIN}\n{figures}\n{END}", text, flags=re.S)
    if write:
        path.write_text(made, encoding="utf-8")
    return made == text


def page(outcomes: Mapping[str, Outcome]) -> str:
    """Every kept case, by groups. Raises ValueError for a case of no group."""
    if lost := [name for name in outcomes if _group(name) is None]:
        raise ValueError(f"No group of tools/figures.py takes {', '.join(lost)}.")
    sections = []
    for group in GROUPS:
        mine = {name: outcome for name, outcome in outcomes.items() if _group(name) is group}
        if mine:
            sections.append(f"\n## {group.title}\n\n{group.bound}\n\n{_table(mine)}")
    return "".join(sections) + _redis()


def _redis() -> str:
    """The section of the Redis engine, which has more sides than two."""
    lines = (RESULTS / f"{REDIS}.jsonl").read_text(encoding="utf-8").splitlines()
    return f"\n## The Redis engine\n\n{REDIS_BOUND}\n\n{redis_table([json.loads(line) for line in lines])}"


def redis_table(outcomes: Sequence[Outcome]) -> str:
    """Each row is of the last run that had its figure, the oldest run first: a run may be of one case alone."""
    of_rows = {key: each for each in outcomes for key in REDIS_ROWS if key in each["medians"].get("redis", {})}
    sides = [name for name in REDIS_SIDES if any(name in each["medians"] for each in of_rows.values())]
    floors = [name for name in REDIS_FLOORS if name in sides]
    titles = [*(REDIS_SIDES[name] for name in sides), *(REDIS_FLOORS[name] for name in floors)]
    rows = [f"| case | {' | '.join(titles)} | of |\n", f"|{'---|' * (len(titles) + 2)}\n"]
    for key, label in REDIS_ROWS.items():
        if key not in of_rows:
            continue
        medians = of_rows[key]["medians"]
        told = {name: medians[name][key] for name in sides if key in medians.get(name, {})}
        is_rate = " " not in key  # the others are costs
        cells = [_short(told[name]) if name in told else "" for name in sides]
        cells += [f"{told['redis'] / told[name]:.2f}" if is_rate and name in told else "" for name in floors]
        rows.append(f"| {label} | {' | '.join(cells)} | {of_rows[key]['date'][:10]} |\n")
    return "".join(rows)


def readme(outcomes: Mapping[str, Outcome]) -> str:
    """The rows of ROWS. Raises KeyError for a row that the results do not hold."""
    rows = [
        _row({**outcomes[name], "title": label}, f"{_natively(outcomes, name)} | {_verdict(outcomes[name])}")
        for name, label in ROWS.items()
    ]
    head = "\n| case | Headrace | Apache Kafka | ratio | native | Headrace is |\n|---|---|---|---|---|---|\n"
    return head + "".join(rows)


def _natively(outcomes: Mapping[str, Outcome], name: str) -> str:
    """The native road's ratio to Kafka in the same case; empty where it was not measured."""
    outcome = outcomes.get(f"native-{name}")
    return "" if outcome is None else f"{outcome['ratio']:.2f}"


def _group(name: str) -> Group | None:
    return next((group for group in GROUPS if any(fnmatch(name, pattern) for pattern in group.cases)), None)


def _table(outcomes: Mapping[str, Outcome]) -> str:
    plain = [outcome for outcome in outcomes.values() if outcome["rivals"]]
    head = "| case | Headrace | beside | ratio | Headrace is | of |\n|---|---|---|---|---|---|\n"
    table = head + "".join(_row(outcome, f"{_verdict(outcome)} | {outcome['date'][:10]}") for outcome in plain)
    moves = [outcome for outcome in plain if "copied_mb" in outcome["runs"][0]["others"]]
    return table + _moves(moves) + "".join(map(_linear, (o for o in outcomes.values() if not o["rivals"])))


def _row(outcome: Outcome, last: str) -> str:
    ours, theirs = (_side(outcome, name) for name in outcome["rivals"])
    mark = UNCHECKED if _is_unchecked(outcome) else ""
    return f"| {outcome['title']}{mark} | {ours} | {theirs} | {outcome['ratio']:.2f} | {last} |\n"


def _is_unchecked(outcome: Outcome) -> bool:
    produces = any(fnmatch(outcome["case"], pattern) for pattern in PRODUCING)
    return produces and str(outcome["date"]) < CHECKED_SINCE


def _side(outcome: Outcome, name: str) -> str:
    rival = outcome["rivals"][name]
    side = f"{_short(rival['median'])} {outcome['unit']}, {_durability(rival['durability'])}"
    return side if name != "headrace-without-journal" else f"{side}, without the journal"


def _durability(told: str) -> str:
    return "fsync" if told.startswith("fsync") else told


def _verdict(outcome: Outcome) -> str:
    """Rates are better where they are higher; times and multiples where they are lower."""
    ratio = float(outcome["ratio"])
    if abs(ratio - 1) <= EVEN:
        return "even"
    faster = (ratio > 1) == outcome["unit"].endswith("/s")
    return "better" if faster else "**worse**"


def _moves(outcomes: Sequence[Outcome]) -> str:
    """The costs of a move on each side, one below the other."""
    if not outcomes:
        return ""
    head = "| case | who | " + " | ".join(label for label, _ in MOVES.values()) + " |"
    rows = [_cost(outcome, name) for outcome in outcomes for name in outcome["rivals"]]
    return f"\n{head}\n{'|---' * (2 + len(MOVES))}|\n" + "".join(rows)


def _cost(outcome: Outcome, name: str) -> str:
    runs = [run | run["others"] for run in outcome["runs"] if run["rival"] == name]
    told = [shape.format(statistics.median(run[key] for run in runs)) for key, (_, shape) in MOVES.items()]
    who = "Apache Kafka" if name.startswith("kafka") else "Headrace"
    return f"| {outcome['title']} | {who} | {' | '.join(told)} |\n"


def _linear(outcome: Outcome) -> str:
    """A case of ours alone, at several sizes."""
    rows = [f"| {size['megabytes'] / 1024:.0f} GB | {size['median']:.2f} |\n" for size in outcome["sizes"]]
    return f"\n| {outcome['title']} | seconds for each GB |\n|---|---|\n" + "".join(rows)


def _short(median: float) -> str:
    return f"{median:,.0f}" if median >= 1000 else f"{median:,.1f}" if median >= 10 else f"{median:.3f}"


if __name__ == "__main__":
    sys.exit(main())
