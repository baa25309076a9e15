"""Bugs to plant in the functions and in the engine on Redis, one at a time, to show that the simulator finds them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from headrace.base.ids import Offset
from headrace.metadata import replay
from headrace.metadata.delta import ImageDelta
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.redis.flushing import RedisRound, Ticket, Wait
from headrace.storage.redis.links.connection import Reply
from headrace.storage.redis.log import RedisLog
from headrace.storage.redis.metadata.doubting import Doubting
from headrace.storage.redis.server_side.functions import Call, Status
from headrace.storage.redis.server_side.model import Answer, RedisModel


@contextmanager
def epoch_not_checked() -> Iterator[None]:
    """The functions take a call of any leader epoch."""
    refused = RedisModel._refused

    def trusting(self: RedisModel, key: bytes, topic: bytes, epoch: bytes) -> Answer | None:
        no = refused(self, key, topic, epoch)
        return None if no is not None and no[0] == Status.FENCED else no

    with patch.object(RedisModel, "_refused", trusting):
        yield


@contextmanager
def end_not_checked() -> Iterator[None]:
    """The function adds batches wherever the log ends, as a bare XADD would."""
    append = RedisModel._append

    def careless(self: RedisModel, keys: list[bytes], args: list[bytes]) -> Answer:
        state = self._hash(keys[1])
        if state.get(b"topic") == args[0] and state.get(b"epoch") == args[1]:
            moved = self._number(keys[1], b"end") - int(args[2])
            ends = [b"%d" % (int(each) + moved) if not at % 2 else each for at, each in enumerate(args[5:])]
            args = [*args[:2], b"%d" % (int(args[2]) + moved), *args[3:5], *ends]
        return append(self, keys, args)

    with patch.object(RedisModel, "_append", careless):
        yield


@contextmanager
def sent_again_without_a_look() -> Iterator[None]:
    """A call that is sent again is executed again, although its batches are there."""
    append = RedisModel._append

    def repeated(self: RedisModel, keys: list[bytes], args: list[bytes]) -> Answer:
        before = self._number(keys[1], b"end")
        answer = append(self, keys, args)
        if answer[0] == Status.DONE and before == self._number(keys[1], b"end"):
            moved = before - int(args[2])
            ends = [b"%d" % (int(each) + moved) if not at % 2 else each for at, each in enumerate(args[5:])]
            append(self, keys, [*args[:2], b"%d" % before, *args[3:5], *ends])
        return answer

    with patch.object(RedisModel, "_append", repeated):
        yield


@contextmanager
def answered_before_waitaof() -> Iterator[None]:
    """An append counts as durable once it is executed."""
    waits = RedisRound._waits

    def hasty(self: RedisRound, left: Sequence[int]) -> list[Wait]:
        return [each for each in waits(self, left) if each[0] != "WAITAOF"]

    with patch.object(RedisRound, "_waits", hasty):
        yield


@contextmanager
def answered_without_wait() -> Iterator[None]:
    """Replicas count that are connected, whether or not they have the records."""
    waits, are_durable = RedisRound._waits, RedisRound._are_durable

    def hasty(self: RedisRound, left: Sequence[int]) -> list[Wait]:
        return [each for each in waits(self, left) if each[0] != "WAIT"]

    def trusting(self: RedisRound, left: Sequence[int], waits: Sequence[Wait], replies: Sequence[Reply]) -> bool:
        for at in left:
            self._tickets[at].copies = self._tickets[at].copies_wanted
        return are_durable(self, left, waits, replies)

    with patch.multiple(RedisRound, _waits=hasty, _are_durable=trusting):
        yield


@contextmanager
def lease_not_checked() -> Iterator[None]:
    """The function `commit` takes an entry of any controller."""
    commit = RedisModel._commit

    def trusting(self: RedisModel, keys: list[bytes], args: list[bytes]) -> Answer:
        with patch.object(RedisModel, "_not_holder", lambda *_: None):
            return commit(self, keys, args)

    with patch.object(RedisModel, "_commit", trusting):
        yield


@contextmanager
def opened_as_flushed() -> Iterator[None]:
    """A leader takes for durable what it finds, which an earlier one may have left before it was."""
    init = RedisLog.__init__

    def trusting(self: RedisLog, *args: Any) -> None:
        init(self, *args)
        self.flushed_end, self.is_confirmed = self.known_end, True

    with patch.object(RedisLog, "__init__", trusting):
        yield


@contextmanager
def flushed_with_what_left_ahead() -> Iterator[None]:
    """A round counts for the appends, too, that have left while it was under way."""
    finish_flush = RedisLog.finish_flush

    def hasty(self: RedisLog, ticket: FlushTicket) -> Offset:
        finish_flush(self, ticket)
        self.flushed_end = self.known_end = max(self.flushed_end, self.sent_end)
        return self.flushed_end

    with patch.object(RedisLog, "finish_flush", hasty):
        yield


@contextmanager
def joined_with_what_left_ahead() -> Iterator[None]:
    """A round sends again in one call what left ahead and what came later. Redis may have a part, and refuses it."""
    calls = Ticket.calls

    def joined(self: Ticket, *, again: bool) -> list[Call]:
        ahead = () if again else self.ahead
        with patch.object(self, "ahead", ahead):
            return calls(self, again=again)

    with patch.object(Ticket, "calls", joined):
        yield


@contextmanager
def stored_in_memory() -> Iterator[None]:
    """acks=1 is answered before Redis has answered."""
    begin_flush = RedisLog.begin_flush

    def hasty(self: RedisLog) -> Ticket | None:
        self.note_stored(self.log_end_offset)
        return begin_flush(self)

    with patch.object(RedisLog, "begin_flush", hasty):
        yield


@contextmanager
def registration_not_repeated() -> Iterator[None]:
    """A broker whose registration is lost takes it for its removal."""
    with patch.object(ImageDelta, "may_lack_changes", False):
        yield


@contextmanager
def epochs_not_raised() -> Iterator[None]:
    """A controller that goes on behind lost changes raises no epoch."""
    with patch.object(replay, "DOUBTED_EPOCHS", 0):
        yield


@contextmanager
def another_redis_not_noticed() -> Iterator[None]:
    """A controller goes on behind the end that it finds, whichever Redis has it, and by the lease that it had in
    another. It notices only what it has read itself."""

    async def blind(self: Doubting) -> dict[str, str]:
        return {}

    def trusting(self: RedisModel, lease: bytes, head: bytes, holder: bytes, token: bytes) -> Answer | None:
        return self._not_holder(lease, holder, token)

    with patch.object(Doubting, "_server", blind), patch.object(RedisModel, "_not_controller", trusting):
        yield


@contextmanager
def lease_outlives_its_redis() -> Iterator[None]:
    """A lease counts in any Redis that has it. Its holder goes on after a failover or a restart of Redis, and raises
    no doubt: it may not know of entries that are lost."""

    def trusting(self: RedisModel, lease: bytes, head: bytes, holder: bytes, token: bytes) -> Answer | None:
        return self._not_holder(lease, holder, token)

    with patch.object(RedisModel, "_not_controller", trusting):
        yield


PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "epoch-not-checked": epoch_not_checked,
    "end-not-checked": end_not_checked,
    "sent-again-without-a-look": sent_again_without_a_look,
    "answered-before-waitaof": answered_before_waitaof,
    "answered-without-wait": answered_without_wait,
    "lease-not-checked": lease_not_checked,
    "opened-as-flushed": opened_as_flushed,
    "flushed-with-what-left-ahead": flushed_with_what_left_ahead,
    "joined-with-what-left-ahead": joined_with_what_left_ahead,
    "stored-in-memory": stored_in_memory,
    "registration-not-repeated": registration_not_repeated,
    "epochs-not-raised": epochs_not_raised,
    "another-redis-not-noticed": another_redis_not_noticed,
    "lease-outlives-its-redis": lease_outlives_its_redis,
}
