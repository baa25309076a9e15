"""A flush round: everything that the brokers' logs have for Redis leaves in one write, and nothing counts before Redis
has answered.

Promises: after a lost connection or a time-out the same calls are sent again, which answer as the first ones did. It
goes on until every outcome is known, or until the engine gives up because the broker stops. A refusal that may pass is
tried again with a growing pause. A stale epoch is final, and so is a log that ends below what Redis had acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.base.errors import StorageFailure
from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import (
    REDIS_APPEND_BYTES_MAX,
    REDIS_BACKOFF_MS_MAX,
    REDIS_BACKOFF_MS_MIN,
    REDIS_WAIT_MS,
)
from headrace.logs import get_logger
from headrace.storage.engine.faults import Abandoned, Diverged, Fenced
from headrace.storage.engine.flushing import Outcome, Outcomes
from headrace.storage.engine.identity import LogIdentity
from headrace.storage.redis.ahead import SentAhead
from headrace.storage.redis.errors import RedisFailure, RedisGarbled, RedisNoFunction, RedisWrongType
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.connection import Argument, Reply
from headrace.storage.redis.server_side.functions import Answer, Batch, Call, PartitionFunctions, Status, answer_of
from headrace.storage.redis.server_side.keys import PartitionKeys

if TYPE_CHECKING:
    from headrace.storage.redis.engine import RedisEngine
    from headrace.storage.redis.log import RedisLog

log = get_logger(__name__)


Wait: TypeAlias = tuple[Argument, ...]
"""A command that ends once the calls before it are durable, or it has waited for long."""


class Pending(NamedTuple):
    """A batch that is appended and not flushed."""

    base: Offset
    end: Offset
    data: bytes
    epoch: LeaderEpoch
    timestamp: int
    """The highest timestamp of its range up to here; -1: none."""
    ends_range: bool = False
    """Whether the time index gets an entry behind it."""


def in_calls(pending: Sequence[Pending]) -> Iterator[list[Pending]]:
    """The batches of each call. They are of one epoch, and at most the last one ends a range."""
    part: list[Pending] = []
    size = 0
    for each in pending:
        if part and (
            size + len(each.data) > REDIS_APPEND_BYTES_MAX or each.epoch != part[-1].epoch or part[-1].ends_range
        ):
            yield part
            part, size = [], 0
        part.append(each)
        size += len(each.data)
    if part:
        yield part


def append_of(functions: PartitionFunctions, part: Sequence[Pending]) -> Call:
    last = part[-1]
    batches = [Batch(each.end, each.data) for each in part]
    return functions.append(part[0].base, batches, last.timestamp, ends_range=last.ends_range)


class Ticket:
    """One flush of one log: its calls, in order."""

    def __init__(
        self,
        owner: RedisLog,
        keys: PartitionKeys,
        pending: Sequence[Pending],
        *,
        end: Offset,
        epoch: LeaderEpoch,
        trims: Sequence[tuple[Offset, int]],
        snapshot: tuple[Offset, bytes] | None,
        aborted: Sequence[Batch] = (),
        ahead: Sequence[SentAhead] = (),
        is_repeat: bool = False,
    ) -> None:
        """`ahead`: calls that have left already, for the first of the batches. `is_repeat`: others have left, and do
        not count."""
        self.owner: Final = owner
        self.end: Final = end
        self.copies_wanted: Final = owner.copies_wanted
        """Copies that Redis's replicas are to have."""
        self.copies = 0
        """Copies that they have."""
        self.pending: Final = pending
        self.trims: Final = trims
        self.snapshot: Final = snapshot
        self.aborted: Final = aborted
        """Entries of transactions that were aborted below it."""
        self.ahead: Final = ahead
        self.is_repeat: Final = is_repeat
        self.stream: Final = keys.stream
        self._keys = keys
        self._epoch = epoch
        self._claimed = owner.claimed_epoch if owner.is_confirmed else NO_EPOCH  # a write, for which waits can wait
        self._known_end = owner.known_end

    def calls(self, *, again: bool) -> list[Call]:
        """The calls to send; `again`: earlier ones may have been executed, or lost with a server that failed over.
        Otherwise those that were sent `ahead` are left out."""
        made: list[Call] = []
        claimed = NO_EPOCH if again else self._claimed
        for part in islice(self._parts(), 0 if again else len(self.ahead), None):
            claimed = self._claim(made, claimed, part[0].epoch)
            made.append(append_of(PartitionFunctions(self._keys, self.owner.identity.topic_id, claimed), part))
        self._claim(made, claimed, self._epoch)
        functions = PartitionFunctions(self._keys, self.owner.identity.topic_id, self._epoch)
        if self.snapshot is not None:
            made.append(functions.producers(*self.snapshot, self.aborted))
        made += [functions.trim(start, trimmed) for start, trimmed in self.trims]
        return made

    def _parts(self) -> Iterator[Sequence[Pending]]:
        """The batches of each call. Those that left ahead stay in calls of their own: Redis may have them, and lack
        those behind them."""
        first = 0
        for each in self.ahead:
            yield self.pending[first : first + each.batches]
            first += each.batches
        yield from in_calls(self.pending[first:])

    def _claim(self, made: list[Call], claimed: LeaderEpoch, epoch: LeaderEpoch) -> LeaderEpoch:
        if claimed != epoch:
            functions = PartitionFunctions(self._keys, self.owner.identity.topic_id, epoch)
            made.append(functions.claim(self.owner.birth, self.owner.owner))
        return epoch

    def outcome_of(self, call: Call, answer: Answer) -> Outcome:
        """Raises RedisGarbled where nothing is known, and the call is to be repeated."""
        name = self.owner.identity.name
        match answer.status:
            case Status.DONE if call.function == "claim" and answer.number > max(self.end, self.owner.sent_end):
                return self._other_records(answer.number)
            case Status.DONE if call.function == "claim" and answer.number < self._known_end:
                return lost(self.owner.identity, answer.number, self._known_end)
            case Status.DONE if call.function == "claim" and answer.number < self._begins_at(_epoch_of(call)):
                return Diverged(f"Redis has begun epoch {_epoch_of(call)} of {name} without the records before it.")
            case Status.FENCED if self._is_by_itself(call, answer):
                return None
            case Status.AT if answer.number < self._known_end:
                return lost(self.owner.identity, answer.number, self._known_end)
            case Status.AT:
                return self._other_records(answer.number)
            case Status.DONE | Status.STALE:
                return None
            case Status.FENCED if answer.number <= self._epoch:
                raise RedisGarbled(f"Redis has forgotten that epoch {self._epoch} of {name} began.")
            case Status.FENCED:
                return Fenced(f"Epoch {answer.number} of {name} has begun.")
            case Status.GONE if not answer.values[0]:
                raise RedisGarbled(f"Redis has forgotten {name}, as after a restart without its data.")
            case Status.GONE:
                return Fenced(f"The topic of {name} is deleted in Redis.")
            case _:
                return StorageFailure(f"Redis answers a {call.function} of {name} with {answer}.")

    def _is_by_itself(self, call: Call, answer: Answer) -> bool:
        """Whether an earlier try of this ticket has begun a later epoch, behind this call."""
        return _epoch_of(call) < answer.number <= self._epoch and answer.values[1] == self.owner.owner

    def _begins_at(self, epoch: int) -> Offset:
        """The end of its records of earlier epochs, which Redis has before this one begins."""
        return max((each.end for each in self.pending if each.epoch < epoch), default=Offset(0))

    def _other_records(self, end: int) -> Diverged:
        owner = self.owner.identity
        log.error(
            "Redis has records that this leader has not written: it is opened again with them",
            topic=owner.topic_name,
            partition=owner.partition,
            its_end=end,
            leaders_end=self.end,
        )
        return Diverged(f"Redis has other records of {owner.name} than this leader, and ends at {end}.")


def _epoch_of(call: Call) -> int:
    """The leader epoch that it names."""
    return int(call.arguments[2 if call.function == "claim" else 1])


def lost(owner: LogIdentity, end: int, known_end: Offset) -> Diverged:
    """Tell that acknowledged records are lost, and return the failure."""
    log.error(
        "Redis has lost acknowledged records, as after a failover: consumers that read them are told to go back",
        topic=owner.topic_name,
        partition=owner.partition,
        first_offset=end,
        next_offset=known_end,
    )
    return Diverged(f"Redis has lost the records of {owner.name} from {end} to {known_end - 1}.")


class RedisRound:
    """A `FlushRound`. Its first try costs no task: most rounds are over with the answers to it."""

    def __init__(self, engine: RedisEngine, tickets: Sequence[Ticket]) -> None:
        self._engine = engine
        self._tickets = tickets
        self._outcomes: list[Outcome] = [None] * len(tickets)
        self._retrying: asyncio.Task[None] | None = None
        self._mistake: BaseException | None = None
        """A bug of ours, which has to end the broker."""
        self._lacking: dict[Redis, None] = {}
        """Servers that lack the functions."""

    def begin(self, done: Callable[[Outcomes], object]) -> None:
        self._done = done
        self._engine.begin_waiting()
        self._send_all(list(range(len(self._tickets))), again=False, over=self._on_first_try)

    def end(self) -> None:
        self._retrying = None

    def _on_first_try(self, unknown: list[int]) -> None:
        if self._mistake is not None or not unknown:
            self._engine.troubles.over()
            self._finish()
            return
        self._engine.ahead.doubt()
        self._retrying = asyncio.get_running_loop().create_task(self._retry(unknown))
        self._retrying.add_done_callback(self._on_retried)

    def _on_retried(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._mistake = self._mistake or task.exception()
            self._finish()

    def _finish(self) -> None:
        self._engine.end_waiting()
        self._done(self._result)

    def _result(self) -> Sequence[Outcome]:
        if self._mistake is not None:
            raise self._mistake
        return self._outcomes

    async def _retry(self, left: list[int]) -> None:
        """Send again what is unknown, until it is known or the engine gives up."""
        pause_ms, engine, loop = REDIS_BACKOFF_MS_MIN, self._engine, asyncio.get_running_loop()
        while left and self._mistake is None:
            if engine.is_given_up:
                for at in left:
                    self._outcomes[at] = Abandoned("The broker stops, and Redis does not answer.")
                return
            await self._load_functions()
            await engine.pause(pause_ms)
            pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)
            tried: asyncio.Future[list[int]] = loop.create_future()
            self._send_all(left, again=True, over=tried.set_result)
            left = await tried
        engine.troubles.over()

    async def _load_functions(self) -> None:
        lacking, self._lacking = self._lacking, {}
        for node in lacking:
            try:
                await node.load_functions()
            except RedisFailure as error:
                self._note(error)

    def _send_all(self, left: Sequence[int], *, again: bool, over: Callable[[list[int]], object]) -> None:
        """Send the calls of these tickets, each server's by one connection. `over` is called later, with those whose
        outcome is unknown."""
        parts: dict[Redis, list[int]] = {}
        unknown: list[int] = []
        for at in left:
            try:
                parts.setdefault(self._engine.link.node_of(self._tickets[at].stream), []).append(at)
            except RedisFailure as error:
                self._note(error)
                unknown.append(at)
        under_way = 1

        def on_part(of_part: list[int]) -> None:
            nonlocal under_way
            unknown.extend(of_part)
            under_way -= 1
            if not under_way:
                over(unknown)

        for node, some in parts.items():
            try:
                self._send(node, some, again=again, over=on_part)
                under_way += 1
            except RedisFailure as error:
                self._note(error)
                unknown.extend(some)
        if under_way == 1:
            asyncio.get_running_loop().call_soon(on_part, [])
        else:
            on_part([])

    def _note(self, error: RedisFailure) -> None:
        if self._engine.has_connected:
            self._engine.troubles.note(error)

    def _send(self, node: Redis, left: list[int], *, again: bool, over: Callable[[list[int]], object]) -> None:
        """Send the calls of these tickets, which are one server's. `over` is called later, as in `_send_all`. Raises
        RedisFailure where nothing of them is known, and then `over` is never called."""
        sent, calls = self._calls_of(left, again=again)
        waits = self._waits(left)
        replies: list[Reply] = [None] * (len(calls) + len(waits))
        missing = len(replies)

        def on_reply(at: int, reply: Reply) -> None:
            nonlocal missing
            replies[at] = reply
            missing -= 1
            if missing == len(waits) > 0:
                self._tell_stored(left, calls, replies[: len(calls)])
            if missing == 0:
                over(self._judged(node, left, calls, waits, replies))

        try:
            for at, (_, call) in enumerate(calls):
                if (early := sent.get(at)) is not None:
                    early.then(partial(on_reply, at))
                else:
                    node.post(call.command, partial(on_reply, at), call.buffers)
            for at, command in enumerate(waits, len(calls)):
                node.post(command, partial(on_reply, at))
        except RedisFailure:
            missing = -1  # answers to those that were sent do not count: they are sent again, and answer as they did
            raise

    def _calls_of(self, left: Sequence[int], *, again: bool) -> tuple[dict[int, SentAhead], list[tuple[int, Call]]]:
        """The calls of these tickets, each ticket's in order, and which of them were sent ahead, by their place."""
        sent: dict[int, SentAhead] = {}
        calls: list[tuple[int, Call]] = []
        for at in left:
            ticket = self._tickets[at]
            repeats = again or ticket.is_repeat
            for each in () if repeats else ticket.ahead:
                sent[len(calls)] = each
                calls.append((at, each.call))
            calls += [(at, call) for call in ticket.calls(again=repeats)]
        return sent, calls

    def _judged(
        self,
        node: Redis,
        left: Sequence[int],
        calls: Sequence[tuple[int, Call]],
        waits: Sequence[Wait],
        replies: Sequence[Reply],
    ) -> list[int]:
        """Those of `left` whose outcome is unknown still. Called by the connection, which is no place for bugs."""
        try:
            unknown = self._settled(node, calls, replies[: len(calls)])
            if not self._are_durable(left, waits, replies[len(calls) :]):
                return [at for at in left if self._outcomes[at] is None]
            return unknown
        except Exception as mistake:
            self._mistake = mistake
            return []

    def _waits(self, left: Sequence[int]) -> list[Wait]:
        """Commands behind the calls that wait until these are durable."""
        wanted = {self._tickets[at].copies_wanted for at in left} - {0}
        waits: list[Wait] = [("WAIT", copies, REDIS_WAIT_MS) for copies in sorted(wanted)]
        if self._engine.servers.of(self._tickets[left[0]].stream).waits_for_aof:
            waits.append(("WAITAOF", 1, 0, REDIS_WAIT_MS))
        return waits

    def _are_durable(
        self, left: Sequence[int], waits: Sequence[tuple[Argument, ...]], replies: Sequence[Reply]
    ) -> bool:
        """Whether the answers to the waits say so. A ticket notes how many replicas have it: its leader says whether
        these are enough."""
        for command, reply in zip(waits, replies, strict=True):
            if isinstance(reply, RedisFailure):
                self._engine.troubles.note(reply)
                return False
            if command[0] == "WAITAOF":
                return bool(reply[0] >= 1)
            if int(reply) < int(command[1]):
                self._engine.servers.miss_replica()
            for at in left:
                if self._tickets[at].copies_wanted == command[1]:
                    self._tickets[at].copies = int(reply)
        return True

    def _tell_stored(self, left: Sequence[int], calls: Sequence[tuple[int, Call]], replies: Sequence[Reply]) -> None:
        """Tell logs whose calls are all done that their records are stored, before anybody waits for a disk."""
        doubtful = {at for (at, _), reply in zip(calls, replies, strict=True) if not _is_done(reply)}
        for at in left:
            if at not in doubtful:
                self._tickets[at].owner.note_stored(self._tickets[at].end)

    def _settled(self, node: Redis, calls: Sequence[tuple[int, Call]], replies: Sequence[Reply]) -> list[int]:
        """Note the outcomes. Once a call of a ticket is final, or has to be sent again, its later answers do not count.
        They may be refusals for its sake."""
        unknown: dict[int, None] = {}
        for (at, call), reply in zip(calls, replies, strict=True):
            if at in unknown or self._outcomes[at] is not None:
                continue
            try:
                if isinstance(reply, RedisWrongType):
                    self._outcomes[at] = StorageFailure(f"Somebody else writes to {call.keys}: {reply}")
                    continue
                if isinstance(reply, RedisFailure):
                    raise reply
                self._outcomes[at] = self._tickets[at].outcome_of(call, answer_of(reply))
            except RedisFailure as error:
                self._engine.troubles.note(error)
                if isinstance(error, RedisNoFunction):
                    self._lacking[node] = None
                unknown[at] = None
        return list(unknown)


def _is_done(reply: Reply) -> bool:
    return isinstance(reply, list) and reply[:1] == [Status.DONE]
