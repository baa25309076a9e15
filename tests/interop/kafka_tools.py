"""Apache Kafka's own command-line tools, all in one Java process (tools/KafkaTools.java)."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.interop.support.asking import asked
from tools import kafka_jars

PROGRAM: Final = Path(__file__).parent / "tools" / "KafkaTools.java"
PACKAGE: Final = "org.apache.kafka.tools."
ELSEWHERE: Final = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "DumpLogSegments": "kafka.tools.DumpLogSegments",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}


class Said(NamedTuple):
    """A tool's output, with the exit status that its shell script would have had."""

    status: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


class KafkaTools:
    """Runs them against one cluster. `heard` waits after each until all brokers know what it has changed, for the next
    asks any of them."""

    def __init__(self, bootstrap: str, heard: Callable[[], None] = lambda: None) -> None:
        self.bootstrap = bootstrap
        self._heard = heard
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

    def settle(self) -> None:
        """Wait until all brokers know what another program has changed."""
        self._heard()

    def run(self, tool: str, *arguments: str) -> Said:
        """The tool with its class's name, at the cluster."""
        return self.run_bare(tool, "--bootstrap-server", self.bootstrap, *arguments)

    def run_bare(self, tool: str, *arguments: str) -> Said:
        """Exactly these arguments."""
        answer = self._put("\t".join((ELSEWHERE.get(tool, PACKAGE + tool), *arguments)))
        status, _, text = answer.partition(" ")
        self._heard()
        return Said(int(status), base64.b64decode(text).decode())

    def did(self, tool: str, *arguments: str) -> Said:
        """As `run`; it must succeed."""
        said = self.run(tool, *arguments)
        assert said.status == 0, f"{tool} {' '.join(arguments)}: {said.text}"
        return said
