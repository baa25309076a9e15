"""The rows are the same whoever runs the tasks: threads of one process, or executors of a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.tiers import long_only

PROGRAM = """
import json, sys
from pathlib import Path
import pyspark
from headrace.spark.session import SHARED_CLASSES, SHORT_JOB, spark_session
from headrace.spark.session.home import ARCHIVE, home_without_archives

master, store = sys.argv[1:]
java = SHORT_JOB["spark.driver.extraJavaOptions"]
executors = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java}
if (home := home_without_archives(Path(pyspark.__file__).parent)) and (home / ARCHIVE).exists():
    executors["spark.executor.defaultJavaOptions"] = SHARED_CLASSES.format(home / ARCHIVE)  # they start sooner
spark = spark_session(master=master, settings=SHORT_JOB | executors)
spark.sparkContext.setLogLevel("OFF")
reader = spark.read.format("headrace").options(store=store, topic="orders", maxBytesPerPartition="3000")
frame = reader.load().selectExpr("partition", "offset", "hex(key) AS key", "hex(value) AS value")
rows = sorted(map(list, frame.collect()))
running = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(json.dumps({"rows": rows, "executors": running}))
spark.stop()
"""


@long_only
def test_a_cluster_of_two_executors_gives_the_rows_of_a_local_session(store: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "local-cluster[2,1,1024]", store.url],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["executors"] == 2

    def shown(data: bytes | None) -> str | None:
        return None if data is None else data.hex().upper()

    assert told["rows"] == [
        [partition, record.offset, shown(record.key), shown(record.value)]
        for partition in range(3)
        for record in store.rows["orders", partition]
    ]
