"""One partition's log in Apache Kafka's own classes (tools/TransactionLog.java), in one Java process."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.interop.support.asking import asked
from tools import kafka_jars

PROGRAM: Final = Path(__file__).parents[1] / "tools" / "TransactionLog.java"


class KafkaLog:
    """One log at a time, as a context manager."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._command = kafka_jars.compiled(PROGRAM, kafka_jars.class_path())

    def __enter__(self) -> Self:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._put = self._ends.enter_context(asked(process))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.close()

    def ask(self, *words: object) -> str:
        """The answer to one order, which must not have failed."""
        said = self._put("\t".join(str(word) for word in words))
        assert not said.startswith("failed"), said
        return said
