"""The rows are the same through Spark Connect: a server of its own, and a client that has no Java."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headrace.spark.session import SHORT_JOB
from headrace.spark.session.java import find_java
from tests.pipelines import oracle
from tests.tiers import long_only

for _needed in ("grpc", "grpc_status", "google.rpc"):
    pytest.importorskip(_needed, reason="Spark Connect needs it")

ROOT = Path(__file__).resolve().parents[2]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)")
CLIENT = """
import json, sys
from headrace.spark.session import spark_session
from headrace.spark.source import HeadraceDataSource

master, store, registers = sys.argv[1:]
spark = spark_session(master=master)
if registers == "yes":
    spark.dataSource.register(HeadraceDataSource)
reader = spark.read.format("headrace").options(store=store, topic="orders", includeHeaders="true")
frame = reader.option("maxBytesPerPartition", "3000").load()
rows = frame.selectExpr(
    "partition", "offset", "unix_millis(timestamp) as time", "hex(key) as key", "hex(value) as value",
    "transform(headers, h -> array(h.key, hex(h.value))) as headers",
).collect()
print(json.dumps({"kind": type(spark).__module__, "rows": sorted(map(list, rows))}))
spark.stop()
"""


@contextmanager
def connect_server(root: Path) -> Iterator[str]:
    """On a port of loopback that it chooses itself; its URL."""
    places = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": places,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        **SHORT_JOB,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
    }
    package = Path(pyspark.__file__).parent
    command = [str(package / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]"]
    command += [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=root,
        env=environment,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        told = []
        for line in server.stdout:
            told.append(line)
            if (found := STARTED.search(line)) is not None:
                yield f"sc://127.0.0.1:{found[1]}"
                return
        raise AssertionError("".join(told[-20:]))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def rows_of(store: Any) -> list[Any]:
    def shown(data: bytes | None) -> str | None:
        return None if data is None else data.hex().upper()

    return [
        [
            partition,
            record.offset,
            record.timestamp,
            shown(record.key),
            shown(record.value),
            [[name, shown(value)] for name, value in record.headers],
        ]
        for partition in range(3)
        for record in store.rows["orders", partition]
    ]


pytestmark = long_only


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def test_a_pipeline_runs_through_spark_connect(master: str, store: Any, tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        f"""
        pipeline = "materialise"
        name = "orders"
        [source]
        store = "{store.url}"
        topic = "orders"
        includeHeaders = true
        [columns]
        long = "length(value) > 10"
        [table]
        path = "{tmp_path / "table"}"
        partition_by = ["long"]
        [spark]
        master = "{master}"
        """
    )
    done = subprocess.run(
        [sys.executable, "-m", "headrace.spark.pipelines", str(file)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = oracle.consumer_rows(tmp_path / "table")
    assert [(row[1], row[2], row[3], row[5], row[6], row[7]) for row in found] == [
        (partition, record.offset, record.timestamp, record.key, record.value, record.headers)
        for partition in range(3)
        for record in store.rows["orders", partition]
    ]


@pytest.mark.parametrize("registers", ["yes", "no"])
def test_spark_connect_gives_the_rows_of_a_local_session(master: str, store: Any, registers: str) -> None:
    """Registered through it, and as it is found by itself where Headrace is installed."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, master, store.url, registers],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kind"] == "pyspark.sql.connect.session"
    assert told["rows"] == rows_of(store)
