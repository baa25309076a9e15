"""Names and values of an exactly-once write: transactional ids of tasks, and what a driver decides about a batch.

No two attempts of tasks ever share a transactional id: `run` is new in each run, and Spark numbers the attempts of one
run. So an id has one transaction in its life, and its state says how that ended.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from headrace.base.errors import CorruptData
from headrace.net.client.two_phase import Prepared

PREFIX: Final = "headrace-spark"
LEDGER_PREFIX: Final = "headrace-spark-ledger"
"""Of the transactional ids by which drivers decide."""
TASK_NAME: Final = re.compile(PREFIX + r"\.([0-9a-f]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)\.(.+)", re.DOTALL)


class TaskName(NamedTuple):
    """The transactional id of one attempt of a task."""

    run: str
    """Of one planned write: hexadecimal digits."""
    batch: int
    task: int
    attempt: int
    """Spark's number of the attempt, which no other one in the run has."""
    query: str

    @classmethod
    def parse(cls, text: str) -> TaskName | None:
        """None: it is not one of ours."""
        found = TASK_NAME.fullmatch(text)
        if found is None:
            return None
        run, batch, task, attempt, query = found.groups()
        return cls(run, int(batch), int(task), int(attempt), query)

    @property
    def text(self) -> str:
        return f"{PREFIX}.{self.run}.{self.batch}.{self.task}.{self.attempt}.{self.query}"


def pattern_of(*, query: str | None = None, run: str | None = None) -> str:
    """The regular expression of the ids of one query, or of runs whose names begin with `run`."""
    any_query = ".+"
    return (
        rf"{PREFIX}\.{run or ''}[0-9a-f]*\.[0-9]+\.[0-9]+\.[0-9]+\.{any_query if query is None else re.escape(query)}"
    )


def ledger_name(query: str) -> str:
    """The transactional id by which the drivers of a query decide, and fence each other."""
    return f"{LEDGER_PREFIX}.{query}"


class Decision(NamedTuple):
    """A batch is committed, and by these transactions. Once it is durable it is never taken back."""

    batch: int
    run: str
    winners: tuple[Prepared, ...]

    def key(self, query: str) -> bytes:
        """The key of its record in the ledger."""
        return query.encode()

    def to_bytes(self) -> bytes:
        rows = []
        for each in self.winners:
            name = TaskName.parse(each.name)
            assert name is not None, each
            assert (name.run, name.batch) == (self.run, self.batch), "its id is made of these again"
            rows.append((name.task, name.attempt, each.producer_id, each.epoch))
        return json.dumps({"batch": self.batch, "run": self.run, "winners": rows}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, query: str, data: bytes) -> Decision:
        """Raises CorruptData."""
        try:
            row = json.loads(data)
            winners = tuple(
                Prepared(TaskName(row["run"], row["batch"], task, attempt, query).text, producer_id, epoch)
                for task, attempt, producer_id, epoch in row["winners"]
            )
            return cls(row["batch"], row["run"], winners)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"The last decision of query '{query}' is none: {error!r}.") from error


class Finished(NamedTuple):
    """All transactions that a decision names are committed. Nobody has to ask for them any more."""

    batch: int
    run: str

    @classmethod
    def of(cls, decision: Decision) -> Finished:
        return cls(decision.batch, decision.run)

    @staticmethod
    def key(query: str) -> bytes:
        """The key of its record in the ledger. No run is named so."""
        return f"{query}\0finished".encode()

    def to_bytes(self) -> bytes:
        return f"{self.batch} {self.run}".encode()


class Abandoned(NamedTuple):
    """A run has given up a batch, so that it never decides about it. A commit of it may still be under way."""

    batch: int
    run: str

    def key(self, query: str) -> bytes:
        """The key of its record in the ledger."""
        return f"{query}\0{self.run}".encode()

    def to_bytes(self) -> bytes:
        return b"%d" % self.batch
