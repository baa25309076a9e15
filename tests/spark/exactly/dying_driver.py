"""A driver, as a process, that prepares a batch of two tasks and commits it, and is killed at one of its steps.

Arguments: bootstrap, topic, query, batch, run, and the number of the step at which it kills itself (kill -9).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from headrace.net.client.delivery import SealedBatch
from headrace.net.client.two_phase import Prepared
from headrace.spark.brokers import Brokers
from headrace.spark.write.exactly import driving
from headrace.spark.write.exactly.commit import Batch, commit
from headrace.spark.write.exactly.names import TaskName
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record

ROWS = 5
TASKS = 2


def prepare(bootstrap: str, topic: str, name: TaskName, *values: bytes) -> Prepared:
    """Write values as a task does."""
    with Brokers(bootstrap) as brokers:
        delivery = brokers.delivery(60_000, name.text)
        assert delivery.transaction is not None
        records = [Record(at, 0, None, value) for at, value in enumerate(values)]
        producer_id, epoch = delivery.producer
        data = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
        brokers.deliver(delivery, [SealedBatch(topic, brokers.topic(topic).id, 0, data)]).result()
        brokers.stop(delivery)
        return delivery.transaction


def run(bootstrap: str, topic: str, query: str, batch: int, run_name: str) -> None:
    winners = tuple(
        prepare(
            bootstrap,
            topic,
            TaskName(run_name, batch, task, task, query),
            *(b"%d-%d-%d" % (batch, task, row) for row in range(ROWS)),
        )
        for task in range(TASKS)
    )
    commit(bootstrap, Batch(query, batch, run_name), winners)


def main() -> None:
    bootstrap, topic, query, batch, run_name, at = sys.argv[1:]
    steps, carry_out = 0, driving.outcome

    async def dying(*args: Any) -> Any:
        nonlocal steps
        if steps == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return await carry_out(*args)

    driving.outcome = dying  # type: ignore[assignment]
    run(bootstrap, topic, query, int(batch), run_name)


if __name__ == "__main__":
    main()
