"""Members of a group in a process of their own: consumers of Kafka's Java client (`Members` in tests/interop/java)."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.interop import java_project
from tests.promises.support.readings import DEADLINE_S, Readings
from tests.threads import joined


class Kind(NamedTuple):
    """How a group shares out."""

    settings: Mapping[str, str]
    """Of each consumer."""
    static: bool = False

    @property
    def is_classic(self) -> bool:
        return self.settings["group.protocol"] == "classic"


def classic(assignor: str, *, static: bool = False) -> Kind:
    name = f"org.apache.kafka.clients.consumer.{assignor}Assignor"
    times = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    return Kind({"group.protocol": "classic", "partition.assignment.strategy": name, **times}, static)


def consumer(assignor: str, *, static: bool = False) -> Kind:
    return Kind({"group.protocol": "consumer", "group.remote.assignor": assignor}, static)


KINDS: Final[Mapping[str, Kind]] = {
    "range": classic("Range"),
    "consumer-uniform": consumer("uniform"),
    "roundrobin": classic("RoundRobin"),
    "consumer-range": consumer("range"),
    "static": classic("Range", static=True),
    "consumer-static": consumer("uniform", static=True),
    "sticky": classic("Sticky"),
    "cooperative-sticky": classic("CooperativeSticky"),
}
"""Each assignor of either protocol, and static members of both."""


class Members:
    """So many, numbered from `first` on. Tells `readings` all that they tell. A context manager: its end is theirs."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        kind: Kind,
        readings: Readings,
        *,
        name: str,
        first: int,
        count: int,
    ) -> None:
        """`name`: tells this process from others of the same group, also those whose numbers it takes over."""
        self.count = count
        self._name = name
        self._readings = readings
        settings = {"group.id": group, "max.poll.records": "200", **kind.settings}
        arguments = [bootstrap, topic, str(first), str(count), str(kind.static).lower()]
        options = [f"{key}={value}" for key, value in settings.items()]
        self._command = [*java_project.built(), "headrace.interop.Members", *arguments, *options]
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._listen, name=f"what {name} tells", daemon=True)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._running.kill()
        self._running.wait()
        joined(self._thread)

    def restart(self, number: int) -> None:
        """Close that member and start it again, in its own time."""
        stdin = self._running.stdin
        assert stdin is not None
        print("restart", number, file=stdin, flush=True)

    def kill(self) -> None:
        """SIGKILL. On return all that they told has been heard."""
        self._running.kill()
        self._running.wait()
        joined(self._thread)
        self._readings.on_killed(self._name)

    def stop(self) -> None:
        """All of them close."""
        stdin = self._running.stdin
        assert stdin is not None
        stdin.close()
        assert self._running.wait(DEADLINE_S) == 0
        joined(self._thread)

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "begun"
        return self._process

    def _listen(self) -> None:
        with self._running as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):  # else it was killed in the middle
                    self._readings.on_line(self._name, line)
