"""Apache Kafka's own Java clients: an idempotent producer that sends through every death of a broker, and clients of
transactional ids."""

from __future__ import annotations

import subprocess
import threading
from typing import Final, Self

from tests.interop import java_project
from tests.promises.support.load import DEADLINE_S, PARTITIONS, Sender, value_of
from tests.promises.support.transacting import Terms

TOPIC: Final = "java"


def transactor(terms: Terms) -> list[str]:
    """Return the command that runs a client of a transactional id, of the new protocol (`Transactor` in
    tests/interop/java). It tells what `transacting` tells."""
    return [
        *java_project.built(),
        "headrace.interop.Transactor",
        *(str(each).lower() if isinstance(each, bool) else str(each) for each in terms),
    ]


class JavaProducer(Sender):
    """In a process of its own (`Endurance` in tests/interop/java), which tells what was acknowledged to it."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(TOPIC)
        self._command = [*java_project.built(), "headrace.interop.Endurance", bootstrap, TOPIC, str(PARTITIONS)]
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="what the Java producer tells", daemon=True)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        process = self._running
        assert process.stdin is not None
        process.stdin.close()
        self._thread.join(DEADLINE_S)
        assert process.wait(DEADLINE_S) == 0, "the Java producer did not end by itself"

    def give_up(self) -> None:
        self._running.kill()
        self._running.wait()
        self._thread.join()

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "begun"
        return self._process

    def _run(self) -> None:
        with self._running as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._on_line(line)

    def _on_line(self, line: str) -> None:
        match line.split():
            case ["sent", count]:
                self.sent = int(count)
            case ["failed", *_]:
                self._on_failed(line)
            case [partition, offset, number]:
                self._on_acknowledged(int(partition), int(offset), value_of(int(number)))
            case _:
                self._on_failed(f"it said {line!r}")
