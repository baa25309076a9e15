"""Moves of partitions, and durable history with its proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from headrace.base.errors import UsageError
from headrace.base.ids import FIRST_OFFSET, Offset
from headrace.base.limits import MCP_PROOF_S_MAX, MCP_ROWS, MCP_ROWS_MAX
from headrace.base.reading import INT_MAX, LONG_MAX, natural
from headrace.mcp.answers import Answer, Part, bounded, call
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.mcp.tools.topics import Limit, Topic
from headrace.net.client.moves import under_way
from headrace.operations.histories import History, known
from headrace.operations.proving import Verdict, proved


class Move(Part):
    """A move that is under way."""

    topic: str
    partition: int
    source: int
    target: int
    phase: str
    bytes_left: int | None = Field(description="Bytes that are exported before the writes wait; null: unknown.")
    obstacle: str = Field(description="What it waits for, or why its last step failed; empty: neither.")


class Finished(Part):
    """A move that is over."""

    topic: str
    partition: int
    source: int
    pause_ms: int = Field(description="How long writes waited.")


class Moves(Answer):
    """Moves of partitions from broker to broker."""

    under_way: list[Move]
    under_way_left_out: int
    finished: list[Finished] = Field(description="The newest ones.")
    command: str


class HistoryRow(Part):
    """The durable history of one partition."""

    topic: str
    partition: int
    segments: int
    first_offset: int
    end_offset: int = Field(description="Offset of the last durable record.")
    bytes: int
    lag: int | None = Field(description="Records that are not durable yet.")


class Histories(Answer):
    """Partitions with durable history."""

    total: int
    histories: list[HistoryRow]
    left_out: int
    command: str


class Proof(Part):
    """The result of proving one partition's history."""

    topic: str
    partition: int
    segments: int
    bytes: int
    proven_bytes: int
    first_offset: int
    end_offset: int
    problems: list[str] = Field(description="Empty: all that was read is as the catalog says.")


class Proofs(Answer):
    """The proof of durable history: objects, SHA-256, CRC32C, the hash chain, the mirror, and the seam to the log."""

    proofs: list[Proof]
    is_whole: bool = Field(description="False: the time was over before all of it was read: go on by `after`.")
    after: str = Field(description="Where the next call goes on; empty: all was read.")
    is_sound: bool = Field(description="Whether no problem was found in what was read.")
    command: str


class HistoryTools:
    """Tools for moves and durable history."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def topic_moves(self) -> Moves:
        """Moves of partitions: those under way with their phase and what holds them up, and finished ones."""
        views, finished = await under_way(self._desk.cluster)
        shown = [
            Move(
                topic=plain(each.topic),
                partition=each.partition,
                source=each.source,
                target=each.target,
                phase=each.phase,
                bytes_left=None if each.bytes_left < 0 else each.bytes_left,
                obstacle=plain(each.obstacle, 500),
            )
            for each in views[:MCP_ROWS_MAX]
        ]
        ended = [
            Finished(topic=plain(each.topic), partition=each.partition, source=each.source, pause_ms=each.pause_ms)
            for each in finished[-MCP_ROWS:]
        ]
        asks = [call("doctor")] if any(each.obstacle for each in shown) else [call("broker_list")]
        command = self._desk.command("topic", "moves")
        left_out = len(views) - len(shown)
        return Moves(under_way=shown, under_way_left_out=left_out, finished=ended, command=command, next=asks)

    async def durable_list(
        self, topic: Annotated[str | None, Field(description="Only of this topic.")] = None, limit: Limit = MCP_ROWS
    ) -> Histories:
        """Partitions with durable history in the store, and how far each is behind its log."""
        found = await known(self._desk.cluster, [] if topic is None else [topic])
        shown = found[: bounded(limit, MCP_ROWS_MAX)]
        asks = [call("durable_verify", topic=shown[0].topic, partition=shown[0].partition)] if shown else []
        command = self._desk.command("durable", "list", *([] if topic is None else [topic]))
        return Histories(
            total=len(found),
            histories=[_row(each) for each in shown],
            left_out=len(found) - len(shown),
            command=command,
            next=asks or ["Nothing is exported: a topic is where its config durable.enable is true."],
        )

    async def durable_verify(
        self,
        topic: Topic,
        partition: Annotated[int | None, Field(description="Only this one.", ge=0)] = None,
        seconds: Annotated[int, Field(description="Longest that it reads.", ge=1, le=MCP_PROOF_S_MAX)] = 20,
        after: Annotated[str, Field(description="Go on where a call before stopped: its `after`.")] = "",
    ) -> Proofs:
        """Read durable history of a topic back and prove it, for a bounded time. This machine must reach the store."""
        found = [each for each in await known(self._desk.cluster, [topic]) if partition in (None, each.partition)]
        if not found:
            raise UsageError(f"Topic '{topic}' has no durable history there: durable_list() has all that there is.")
        begin_at, begin = _place(after) if after else (found[0].partition, FIRST_OFFSET)
        left = [each for each in found if each.partition >= begin_at]
        if not left or (left[0].partition != begin_at and begin):
            raise UsageError(
                f"Topic '{topic}' has no history at '{after}': prove it from its beginning, without after."
            )
        verdicts = await proved(self._desk.cluster, left, seconds=bounded(seconds, MCP_PROOF_S_MAX), begin=begin)
        go_on = _go_on(left, verdicts)
        is_sound = not any(each.problems for each in verdicts)
        words = ["durable", "verify", topic, *([] if partition is None else ["--partition", str(partition)])]
        command = self._desk.command(*words)
        asks = [] if is_sound else ["A person looks at the store and its backups before anything else is done."]
        asks += [call("durable_verify", topic=topic, partition=partition, after=go_on)] if go_on else []
        return Proofs(
            proofs=[_proof(each) for each in verdicts[:MCP_ROWS_MAX]],
            is_whole=not go_on,
            after=go_on,
            is_sound=is_sound,
            command=command,
            next=asks or [call("durable_list")],
        )


def _place(after: str) -> tuple[int, Offset]:
    """A partition, and the offset at which a proof goes on. Raises UsageError."""
    partition, _, offset = after.partition(":")
    try:
        return natural(partition, INT_MAX), Offset(natural(offset, LONG_MAX))
    except ValueError:
        raise UsageError(f"after='{plain(after, 60)}' is of no call before: give what that has as `after`.") from None


def _go_on(wanted: Sequence[History], verdicts: Sequence[Verdict]) -> str:
    """The place where the time was over; empty: all was read."""
    if verdicts and verdicts[-1].is_out_of_time:
        return f"{verdicts[-1].history.partition}:{verdicts[-1].next_offset}"
    return f"{wanted[len(verdicts)].partition}:{FIRST_OFFSET}" if len(verdicts) < len(wanted) else ""


def _row(each: History) -> HistoryRow:
    return HistoryRow(
        topic=plain(each.topic),
        partition=each.partition,
        segments=each.segments,
        first_offset=each.start,
        end_offset=each.end,
        bytes=each.bytes,
        lag=each.lag,
    )


def _proof(each: Verdict) -> Proof:
    return Proof(
        topic=plain(each.history.topic),
        partition=each.history.partition,
        segments=each.segments,
        bytes=each.bytes,
        proven_bytes=each.proven_bytes,
        first_offset=each.start,
        end_offset=each.end,
        problems=[plain(problem, 500) for problem in each.problems[:MCP_ROWS]],
    )
