"""One client of a transactional id, run as a process of its own, so that a test can kill or stop it at any moment.

It has librdkafka's producer and, where it consumes, librdkafka's consumer of the topic's first partition. It tells each
step in a line on standard output (`Teller`), before the first request of the step or after its answer. It ends where
its standard input ends, or where it cannot go on.

The one argument is JSON with the fields of `Terms`. Nothing of Headrace is imported here.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

DEADLINE_S: Final = 150.0
CALL_S: Final = 5.0
"""After that a call is made again. The process tells so."""
ABORTS: Final = 0.2
THINK_S_MAX: Final = 0.04
RECORDS_MAX: Final = 2
TAKES_MAX: Final = 4
TAKES_S: Final = 0.1
INPUT: Final = 0
STDIN: Final = 0
STDOUT: Final = 1
SESSIONS_MAX: Final = 1 << 10
CLIENT: Final = {
    "log_level": 0,
    "error_cb": lambda _: None,
    "socket.timeout.ms": 2_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}
"""librdkafka else waits a minute for a broker that is stopped or cut off."""


class Terms(NamedTuple):
    bootstrap: str
    topic: str
    partitions: int
    name: str
    """The transactional id, and the group where it consumes."""
    session: int
    """Tells the clients of one test apart; below SESSIONS_MAX."""
    timeout_ms: int
    consumes: bool


class CannotGoOn(Exception):  # noqa: N818 - a state of the client
    """Another client has the id, or this one's epoch is over."""


class Abortable(Exception):  # noqa: N818 - a state of the transaction
    """The transaction can only be aborted."""


class Teller:
    """Tells `MOMENT WHAT ...`. Moments rise, and no two of a machine are the same: nanoseconds of its one clock, with
    the number of the session behind."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._last_ns = 0

    def moment(self) -> int:
        self._last_ns = max(self._last_ns + 1, time.monotonic_ns())
        return self._last_ns * SESSIONS_MAX + self._session

    def tell(self, *words: object) -> None:
        """In one write, so that a line is told whole or not at all."""
        os.write(STDOUT, f"{self.moment()} {' '.join(map(str, words))}\n".encode())


class Client:
    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._random = random.Random(terms.session)
        self._teller = Teller(terms.session)
        self._is_told_to_end = False
        self._position: int | None = None
        self._number = 0
        common = {"bootstrap.servers": terms.bootstrap, **CLIENT}
        more = {"transaction.timeout.ms": terms.timeout_ms, "linger.ms": 0, "request.timeout.ms": 1_500}
        self._producer = Producer({**common, **more, "retry.backoff.ms": 20, "transactional.id": terms.name})
        self._consumer: Any = None
        if terms.consumes:
            options = {"group.id": terms.name, "enable.auto.commit": False, "isolation.level": "read_committed"}
            self._consumer = Consumer({**common, **options, "auto.offset.reset": "error", "check.crcs": True})

    def run(self) -> None:
        try:
            self._until_done(self._producer.init_transactions)
            self._teller.tell("ready")
            while not self._think():
                self._transact()
            self._teller.tell("over", "told")
        except CannotGoOn as error:
            self._teller.tell("over", error)

    def _think(self) -> bool:
        """Wait a moment. Returns whether it is to end."""
        if not self._is_told_to_end:
            told, _, _ = select.select([STDIN], [], [], self._random.random() * THINK_S_MAX)
            self._is_told_to_end = bool(told)
        return self._is_told_to_end

    # one transaction

    def _transact(self) -> None:
        self._number += 1
        self._teller.tell("began")
        self._checked(self._producer.begin_transaction)
        is_asked = False
        try:
            self._fill()
            if self._random.random() < ABORTS:
                raise Abortable
            self._teller.tell("asked")
            is_asked = True
            self._until_done(self._producer.commit_transaction)
            self._teller.tell("ended", "committed")
        except Abortable:
            self._position = None
            self._abort()
            if not is_asked:  # else nobody knows what the answer would have been
                self._teller.tell("ended", "aborted")

    def _abort(self) -> None:
        try:
            self._until_done(self._producer.abort_transaction)
        except Abortable as error:
            raise CannotGoOn("the abort of an abort") from error

    def _fill(self) -> None:
        """Write all of it, and wait until that is acknowledged. Raises Abortable, CannotGoOn."""
        terms = self._terms
        taken = self._take()
        if taken:
            others = [partition for partition in range(terms.partitions) if partition != INPUT]
            targets = [self._random.choice(others) for _ in taken]
        else:
            some = self._random.sample(range(terms.partitions), self._random.randint(1, terms.partitions))
            targets = [partition for partition in some for _ in range(self._random.randint(1, RECORDS_MAX))]
        for at, partition in enumerate(targets):
            value = f"{terms.session}/{self._number}/{at}"
            self._teller.tell("wrote", partition, value)
            self._checked(lambda p=partition, v=value: self._produce(p, v))  # type: ignore[misc]
            self._think()
        while self._checked(lambda: self._producer.flush(CALL_S)) or len(self._producer):
            self._teller.tell("again", "flush")
        if taken:
            self._send_offsets(taken[-1] + 1)
        self._think()

    def _produce(self, partition: int, value: str) -> None:
        self._producer.produce(self._terms.topic, value, partition=partition, on_delivery=self._on_delivery)

    def _on_delivery(self, error: Any, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is None:
            offset = message.offset()
            self._teller.tell("acknowledged", value.decode(), -1 if offset is None or offset < 0 else offset)

    def _send_offsets(self, end: int) -> None:
        offsets, group = [TopicPartition(self._terms.topic, INPUT, end)], self._consumer.consumer_group_metadata()
        self._until_done(lambda limit_s: self._producer.send_offsets_to_transaction(offsets, group, limit_s))
        self._position = end

    # its input

    def _take(self) -> list[int]:
        """Read some input from the committed offset on. Returns its offsets."""
        if self._consumer is None:
            return []
        if self._position is None:
            self._position = self._committed()
            self._consumer.assign([TopicPartition(self._terms.topic, INPUT, self._position)])
        found = self._consumer.consume(self._random.randint(1, TAKES_MAX), TAKES_S)
        offsets = [message.offset() for message in found if message.error() is None]
        if offsets:
            self._teller.tell("taken", self._position, offsets[-1] + 1, *offsets)
        return offsets

    def _committed(self) -> int:
        """The stable committed offset; 0: none."""
        while True:
            try:
                (found,) = self._consumer.committed([TopicPartition(self._terms.topic, INPUT)], CALL_S)
                if found.error is None:
                    break
            except KafkaException as error:
                self._teller.tell("again", error.args[0].name())
        offset: int = max(0, found.offset)
        self._teller.tell("looked", offset)
        return offset

    # errors

    def _until_done(self, call: Callable[[float], object]) -> None:
        """Call again where that may help. Raises Abortable, CannotGoOn."""
        while self._checked(lambda: call(CALL_S)):
            pass

    def _checked(self, call: Callable[[], object]) -> bool:
        """Returns whether to call again. Raises Abortable, CannotGoOn."""
        try:
            call()
        except (KafkaException, SystemError) as raised:  # a callback after a fatal error makes a SystemError of it
            met = raised.__cause__ if isinstance(raised, SystemError) else raised
            if not isinstance(met, KafkaException):
                raise
            error = met.args[0]
            self._teller.tell("again", error.name())
            if error.txn_requires_abort():
                raise Abortable from raised
            if not error.retriable():
                raise CannotGoOn(error.name()) from raised
            return True
        return False


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    Client(Terms(**json.loads(sys.argv[1]))).run()
    os._exit(0)  # librdkafka's own end waits for brokers that may be gone
