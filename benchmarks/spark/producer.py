"""A producer with next to no cost of its own: one batch in flight, encoded once, at a steady pace or when told."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from multiprocessing.connection import Connection
from typing import Final, Self

from benchmarks.load.cases import Entrant, make_topic
from benchmarks.load.raw.raw_client import batch_frame, check_produced
from benchmarks.load.raw.raw_links import Link, log_ends
from benchmarks.spark.data import Data, encoded
from headrace.wire.compression import Compression

RECORD_BYTES: Final = 1024
PER_S: Final = 500
BATCH_RECORDS: Final = 300
"""Of what it sends when it is told to."""
START_TIMEOUT_S: Final = 60.0


class PacedProducer:
    """To a topic of one partition that it makes, from a process of its own."""

    def __init__(self, entrant: Entrant, topic: str, *, per_s: int = PER_S) -> None:
        """With `per_s` 0 it sends only when it is told to."""
        self.data = Data(
            name=f"{topic}-{uuid.uuid4().hex[:8]}", records=0, record_bytes=RECORD_BYTES, compression=Compression.NONE
        )
        make_topic(entrant, self.data.topic, 1)
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        work = (entrant.rival.bootstrap, self.data.topic, per_s, far)
        self._process = context.Process(target=_work, args=work, daemon=True)
        self._process.start()
        far.close()
        assert self._pipe.poll(START_TIMEOUT_S), "the producer does not start"
        self._pipe.recv()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def taken(self) -> list[float]:
        """Seconds that each record took since it was asked last."""
        self._pipe.send(0)
        found: list[float] = self._pipe.recv()
        return found

    def send(self) -> None:
        """One batch of BATCH_RECORDS; on return it is acknowledged."""
        self._pipe.send(BATCH_RECORDS)
        self._pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _work(bootstrap: str, topic: str, per_s: int, parent: Connection) -> None:
    link, taken = Link(bootstrap), list[float]()
    log_ends(link, topic, [0])
    frames = {size: _frame(topic, size) for size in (1, BATCH_RECORDS)}
    parent.send("ready")
    following = time.perf_counter()
    while True:
        wait = None if not per_s else max(0.0, following - time.perf_counter())
        if parent.poll(wait):
            asked = parent.recv()
            if asked:
                _send(link, frames[asked])
            parent.send(taken)
            taken = []
            continue
        following += 1 / per_s
        taken.append(_send(link, frames[1]))


def _frame(topic: str, records: int) -> bytes:
    return batch_frame(topic, [0], encoded([bytes(RECORD_BYTES)] * records, Compression.NONE))


def _send(link: Link, frame: bytes) -> float:
    begun = time.perf_counter()
    link.send(frame)
    while (answer := link.receive()) is None:
        pass
    check_produced(answer)
    return time.perf_counter() - begun
