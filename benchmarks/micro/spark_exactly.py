"""Spark's exactly-once writes beside at-least-once ones, in turns on one broker.

python -m benchmarks.micro.spark_exactly [--mb 12] [--tasks 4] [--pairs 12] [--spark]

A batch is some tasks of 100 B rows and the driver's part: what is checked when it is planned, and its commit. Without
`--spark` this process does both, with the tasks one after the other, as Spark's workers and driver call them. The
processor time of this process and of the broker are told beside the seconds. `--spark` has Spark write the same rows
in `local[2]`, where only the seconds count. Medians and the medians of the pairs' ratios are printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.micro.spark_write import PARTITIONS, table
from headrace.spark.brokers import Brokers
from headrace.spark.session import spark_session
from headrace.spark.write.exactly.commit import Batch, check_brokers, commit, new_run
from headrace.spark.write.exactly.names import TaskName
from headrace.spark.write.sink import parse_write_options
from headrace.spark.write.writing import Producer, TaskWriter, find_target
from tools.servers.broker_process import BrokerProcess

SIZE: Final = 100
DELIVERIES: Final = ("at-least-once", "exactly-once")
Figures = dict[str, float]


def options_of(bootstrap: str, delivery: str) -> dict[str, str]:
    return {"bootstrap": bootstrap, "topic": "rows", "compression": "none", "delivery": delivery}


class Plain:
    """Tasks and driver in this process."""

    def __init__(self, bootstrap: str, megabytes: float, tasks: int) -> None:
        self._bootstrap = bootstrap
        self._tasks = tasks
        self._rows = table(max(10_000, round(megabytes * 1_000_000 / SIZE)), SIZE)

    def write(self, delivery: str) -> Figures:
        options = parse_write_options(options_of(self._bootstrap, delivery), streaming=False)
        spent = {}
        began = time.process_time()
        query, run = str(uuid4()), new_run()
        with Brokers(self._bootstrap) as brokers:
            known = {"rows": find_target(brokers, "rows")}
            if options.exactly_once:
                check_brokers(brokers)
        spent["plan ms"] = 1000 * (time.process_time() - began)
        began, winners = time.process_time(), []
        for task in range(self._tasks):
            name = TaskName(run, 0, task, task, query).text if options.exactly_once else None
            writer = TaskWriter(options, known, None, begin=task, transaction=name)
            writer.write(self._rows)
            winners += [] if writer.prepared is None else [writer.prepared]
        spent["task ms"] = 1000 * (time.process_time() - began) / self._tasks
        began = time.process_time()
        if options.exactly_once:
            commit(self._bootstrap, Batch(query, 0, run), tuple(winners))
        spent["commit ms"] = 1000 * (time.process_time() - began)
        Producer.forget()
        return spent


class BySpark:
    """One batch write of a frame that is in memory."""

    def __init__(self, bootstrap: str, megabytes: float, tasks: int) -> None:
        self._bootstrap = bootstrap
        records = round(megabytes * 1_000_000 / SIZE) * tasks
        spark = spark_session("spark_exactly", master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        value = f"lpad(string(id), {SIZE - 8}, sha2(string(id), 512))"
        rows = spark.range(0, records, 1, tasks)
        self._frame: Any = rows.selectExpr("lpad(string(id), 8, '0') as key", f"{value} as value").cache()
        self._frame.count()

    def write(self, delivery: str) -> Figures:
        self._frame.write.format("headrace").options(**options_of(self._bootstrap, delivery)).mode("append").save()
        return {}


def measured(broker: psutil.Process, write: Callable[[str], Figures], delivery: str) -> Figures:
    """The figures of one write, its seconds, and the processor time of this process and of the broker."""
    mine, its, began = time.process_time(), sum(broker.cpu_times()[:2]), time.perf_counter()
    found = write(delivery)
    return {
        **found,
        "wall ms": 1000 * (time.perf_counter() - began),
        "writer's processor ms": 1000 * (time.process_time() - mine),
        "broker's processor ms": 1000 * (sum(broker.cpu_times()[:2]) - its),
    }


def told(turns: Mapping[str, list[Figures]]) -> str:
    once, exactly = (turns[each] for each in DELIVERIES)
    lines = [f"{'':24}{'at least once':>16}{'exactly once':>16}{'rows/s':>10}{'of pairs':>10}"]
    for key in exactly[0]:
        pair = [statistics.median(each[key] for each in found) for found in (once, exactly)]
        of_pairs = statistics.median(a[key] / b[key] for a, b in zip(once, exactly, strict=True) if b[key])
        ratio = f"{pair[0] / pair[1]:10.3f}" if pair[1] else f"{'':10}"
        lines.append(f"{key:24}{pair[0]:16.2f}{pair[1]:16.2f}{ratio}{of_pairs:10.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=12.0, help="of a task")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    two_phase = ("--config", "transaction.two.phase.commit.enable=true")
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory), *two_phase) as broker:
        made = AdminClient({"bootstrap.servers": broker.bootstrap})
        short = {"retention.bytes": "100000000", "segment.bytes": "50000000"}
        made.create_topics([NewTopic("rows", PARTITIONS, config=short)])["rows"].result(20)
        entrant = (BySpark if given.spark else Plain)(broker.bootstrap, given.mb, given.tasks)
        process, turns = psutil.Process(broker.pid), {each: list[Figures]() for each in DELIVERIES}
        for pair in range(-2, given.pairs):
            for delivery in DELIVERIES[:: 1 if pair % 2 == 0 else -1]:
                found = measured(process, entrant.write, delivery)
                if pair >= 0:
                    turns[delivery].append(found)
        print(f"{given.pairs} pairs of {given.tasks} tasks of {given.mb} MB{', by Spark' if given.spark else ''}")
        print(told(turns))


if __name__ == "__main__":
    main()
