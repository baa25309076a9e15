"""The log's files are Kafka's: its own DumpLogSegments reads every batch and index, and finds no fault in any."""

from __future__ import annotations

import random
import re
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.kafka_tools import KafkaTools
from tests.promises.support.load import QUIET
from tools import kafka_jars
from tools.servers.broker_process import BrokerProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MESSAGES = 5_000
SEGMENT_BYTES = 1024 * 1024
FAULT = re.compile(
    r"exception|error|mismatch|not found|corrupt|invalid bytes|isvalid: false|out of order", re.IGNORECASE
)

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")


def dump(tools: KafkaTools, files: list[Path], *options: str) -> str:
    """The output of Kafka's own tool for these files; fails where it finds a fault."""
    done = tools.run_bare("DumpLogSegments", *options, "--files", ",".join(str(file) for file in files))
    fault = FAULT.search(done.text)
    assert fault is None, f"{options}: {done.text[max(0, fault.start() - 500) : fault.end() + 500]}"
    assert done.status == 0
    return done.text


def fill(bootstrap: str, topic: str, codec: str) -> None:
    """Values that compress to their half, so that every codec is used and rolls; some have no key, some headers."""
    chance = random.Random(codec)
    options = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5, "batch.num.messages": 200}
    producer = confluent_kafka.Producer(options | {"enable.idempotence": codec == "zstd"} | dict(QUIET))
    for number in range(MESSAGES):
        key = None if number % 7 == 0 else b"key-%d" % number
        headers = [("n", b"%d" % number), ("null", None)] if number % 5 == 0 else None
        producer.produce(topic, chance.randbytes(600) * 2, key, partition=0, headers=headers)
        producer.poll(0)
    assert producer.flush(150) == 0


def check_files(tools: KafkaTools, data: Path) -> None:
    """Every log, every batch and every index of every codec's topic."""
    for codec in CODECS:
        logs = sorted((data / "logs" / f"dumped-{codec}-0").glob("*.log"))
        assert len(logs) >= 3, "the log rolled at least twice"
        said = dump(tools, logs, "--deep-iteration")
        batches = re.findall(r"count: (\d+) .*isvalid: true", said)
        assert sum(map(int, batches)) == said.count("| offset: ") == MESSAGES
        assert re.findall(r"compresscodec: (\w+)", said) == [codec] * len(batches)
    indexes = [file for file in data.glob("logs/dumped-*/*index") if file.stat().st_size > 0]
    assert len(indexes) >= 2 * 2 * len(CODECS)
    assert dump(tools, indexes, "--index-sanity-check").count("passed sanity check") == len(indexes)
    dump(tools, indexes, "--verify-index-only")


def check_the_tool_finds_faults(tools: KafkaTools, directory: Path) -> None:
    """A damaged byte in a batch, and an index entry that points beside its batch: the tool and `FAULT` see both."""
    log, index = sorted(directory.glob("*.log"))[0], sorted(directory.glob("*.index"))[0]
    for file, at in ((log, 200), (index, 3)):
        whole = file.read_bytes()
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(AssertionError):
            dump(tools, [file], "--deep-iteration")
        file.write_bytes(whole)


def test_dump_log_segments_reads_what_headrace_wrote(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    config = {"segment.bytes": str(SEGMENT_BYTES)}
    topics = [NewTopic(f"dumped-{codec}", 1, 1, config=config) for codec in CODECS]
    for future in admin.create_topics(topics).values():
        future.result(150)
    for codec in CODECS:
        fill(broker.bootstrap, f"dumped-{codec}", codec)
    broker.kill()
    broker.start()
    assert broker.stop() == 0
    with KafkaTools(broker.bootstrap) as tools:
        check_files(tools, broker.data)
        check_the_tool_finds_faults(tools, broker.data / "logs" / "dumped-none-0")
