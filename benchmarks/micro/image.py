"""The cost of many partitions in the metadata image: `make image`, `python -m benchmarks.micro.image [--partitions N]`.

Makes an image of 100,000 partitions of three replicas, in topics of 1,000, with one topic of 10,000 among them. Then it
measures:
- one event of each of several kinds applied to it (the median of many);
- a snapshot written to the disk and restored, as a broker does it, in a worker thread. The longest pause of an event
  loop beside it is reported;
- fencing a broker that is in every ISR, on a quorum of one, beside such a loop;
- the highest resident memory.

A broker's own watchdog watches that loop, too, and logs what it sees. Each figure is shown beside its promise. Linux
only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeVar

from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
)
from headrace.broker.cluster.quorum.commit_log import metadata_on_raft
from headrace.broker.cluster.transitions import BrokerTransitions
from headrace.broker.system import tune_interpreter
from headrace.broker.watchdog import Watchdog
from headrace.controller.brokers import register_broker
from headrace.controller.topics import NewTopic, create_topics
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import BrokerUnfenced, ConfigChanged, LeaderChanged, MetadataEvent
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Endpoint
from headrace.net import loops
from headrace.raft.membership import Membership, Peer
from headrace.raft.messages import SnapshotMark
from headrace.storage.disk import LocalDisk
from headrace.storage.raftlog.metadata_log import image_of_snapshot, snapshot_lines
from headrace.storage.raftlog.raft_log import open_commit_log

T = TypeVar("T")
BROKERS: Final = 3
PER_TOPIC: Final = 1_000
LARGE_TOPIC: Final = 10_000
REPEATS: Final = 200
ME: Final = Peer(BrokerId(1), DirectoryId(uuid.UUID(int=1)))


class Figure(NamedTuple):
    """One measurement beside its promise, where there is one."""

    name: str
    value: float
    most: float | None
    unit: str


def made(partitions: int) -> MetadataImage:
    """The image, by the controller's own decisions."""
    image = EMPTY_IMAGE
    for broker in range(1, BROKERS + 1):
        decision = register_broker(
            image,
            cluster_id=ClusterId("c"),
            broker_id=BrokerId(broker),
            directory_id=DirectoryId(uuid.UUID(int=broker)),
            endpoints=(Endpoint(listener="PLAINTEXT", host="broker.example", port=9092),),
            rack=f"rack-{broker}",
            unfenced=True,
        )
        image = image.replay(decision.events, index=image.index + 1)
    large = min(LARGE_TOPIC, partitions)
    for number, count in enumerate([large, *[PER_TOPIC] * ((partitions - large) // PER_TOPIC)]):
        topic = NewTopic(
            topic_id=TopicId(uuid.UUID(int=number + 1, version=4)),
            name=f"topic-{number:05d}",
            partitions=count,
            replication_factor=BROKERS,
            configs={"retention.ms": "1000"},
        )
        image = image.replay(create_topics(image, [topic], broker_configs={}).events, index=image.index + 1)
    return image


def apply_times(image: MetadataImage) -> Iterator[Figure]:
    """Milliseconds of one event, decided before, as a broker applies it: the delta, and what it asks of a broker."""
    random = Random(1)
    usual = image.topics[image.topic_ids["topic-00001"]]
    large = image.topics[image.topic_ids["topic-00000"]]

    def elected(topic_id: TopicId) -> MetadataEvent:
        known = random.choice(image.topics[topic_id].partitions)
        return LeaderChanged(
            topic_id=topic_id,
            partition=known.index,
            leader=known.replicas[-1],
            leader_epoch=LeaderEpoch(known.leader_epoch + 1),
            partition_epoch=PartitionEpoch(known.partition_epoch + 1),
            isr=known.isr,
        )

    new = NewTopic(topic_id=TopicId(uuid.uuid4()), name="new", partitions=1, replication_factor=3, configs={})
    kinds: dict[str, Callable[[], MetadataEvent]] = {
        "a leader changed, topic of 1,000": lambda: elected(usual.id),
        f"a leader changed, topic of {len(large.partitions):,}": lambda: elected(large.id),
        "a topic created": lambda: create_topics(image, [new], broker_configs={}).events[0],
        "a broker unfenced": lambda: BrokerUnfenced(broker_id=BrokerId(2), broker_epoch=BrokerEpoch(2)),
        "a config changed": lambda: ConfigChanged(topic_id=usual.id, changes={"retention.ms": "5"}),
    }
    for name, event in kinds.items():
        times = []
        for _ in range(REPEATS):
            one = event()
            begin = time.perf_counter()
            ImageDelta.of(image, [one], index=image.index + 1).local_changes(BrokerId(1))
            times.append((time.perf_counter() - begin) * 1000)
        yield Figure(name, statistics.median(times), 1.0, "ms")
    begin = time.perf_counter()
    create_topics(image, [new], broker_configs={})
    yield Figure("deciding on a topic", (time.perf_counter() - begin) * 1000, 1.0, "ms")


class Pauses:
    """The longest that the event loop was held while this was at work."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._at = time.perf_counter()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.longest_ms = 0.0
        self._at = time.perf_counter()
        self._tick()

    def end(self) -> float:
        if self._timer is not None:
            self._timer.cancel()
        self._look()
        return self.longest_ms

    def _look(self) -> None:
        now = time.perf_counter()
        self.longest_ms = max(self.longest_ms, (now - self._at) * 1000 - 1)
        self._at = now

    def _tick(self) -> None:
        self._look()
        self._timer = asyncio.get_running_loop().call_later(0.001, self._tick)


async def snapshot_times(image: MetadataImage, directory: Path) -> list[Figure]:
    """Written and restored in a worker thread, beside the loop."""
    loop, pauses, disk = asyncio.get_running_loop(), Pauses(), LocalDisk()
    born = Membership(frozenset((ME,)))
    log, _ = open_commit_log(disk, directory, born=born)
    mark = SnapshotMark(image.index, 0, born)

    async def timed(work: Callable[[], T]) -> tuple[float, float, T]:
        with Watchdog():
            pauses.begin()
            begin = time.perf_counter()
            result = await loop.run_in_executor(None, work)
            return time.perf_counter() - begin, pauses.end(), result

    def write() -> None:
        log.prepare_snapshot(mark, snapshot_lines(image))

    def restore() -> MetadataImage:
        again, recovery = open_commit_log(disk, directory, born=born)
        again.close()
        return image_of_snapshot(recovery.snapshot)

    written_s, written_ms, _ = await timed(write)
    log.roll()
    log.install_snapshot(mark)
    log.close()
    restored_s, restored_ms, restored = await timed(restore)
    assert restored == image, "what is restored is what was kept"
    size = sum(path.stat().st_size for path in directory.glob("*.snapshot"))
    return [
        Figure("snapshot written", written_s, 10.0, "s"),
        Figure("the loop held meanwhile, at most", written_ms, 20.0, "ms"),
        Figure("snapshot restored", restored_s, 10.0, "s"),
        Figure("the loop held meanwhile, at most", restored_ms, 20.0, "ms"),
        Figure("bytes of the snapshot", size / 1e6, None, "MB"),
    ]


async def settle_times(directory: Path) -> list[Figure]:
    """A broker that is in every ISR is fenced and comes back, on the commit log that `snapshot_times` left behind."""
    pauses, figures = Pauses(), list[Figure]()
    driver = metadata_on_raft(disk=LocalDisk(), directory=directory, me=ME, random=Random(1))
    await driver.start()
    gc.collect()
    gc.freeze()

    def look(delta: ImageDelta) -> None:
        delta.local_changes(ME.node)

    driver.subscribe(look)
    settling = BrokerTransitions(driver)
    for name, change in (("fenced", settling.fence), ("unfenced", settling.unfence)):
        index = driver.image.index
        with Watchdog():
            pauses.begin()
            begin = time.perf_counter()
            assert await change(driver.image.brokers[BrokerId(2)]) is None
            taken_s = time.perf_counter() - begin
            held_ms = pauses.end()
        entries = driver.image.index - index
        figures.append(Figure(f"a broker in all ISRs {name} ({entries} entries)", taken_s, None, "s"))
        figures.append(Figure("the loop held meanwhile, at most", held_ms, 20.0, "ms"))
    await driver.stop()
    return figures


def resident_mb() -> float:
    """At the most, since the process began."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100_000)
    partitions = parser.parse_args().partitions
    image = made(partitions)
    tune_interpreter()  # as a broker that serves
    figures = list(apply_times(image))
    with tempfile.TemporaryDirectory() as directory:
        figures += loops.run(snapshot_times(image, Path(directory)))
        figures += loops.run(settle_times(Path(directory)))
    figures.append(Figure("resident memory, at most", resident_mb(), 1000.0, "MB"))
    print(f"image of {sum(len(topic.partitions) for topic in image.topics.values()):,} partitions")
    for figure in figures:
        promised = "" if figure.most is None else f"  (at most {figure.most:g})"
        print(f"  {figure.name:<40} {figure.value:10.3f} {figure.unit}{promised}")
    missed = [figure for figure in figures if figure.most is not None and figure.value > figure.most]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
