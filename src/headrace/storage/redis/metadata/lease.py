"""The controller's lease in Redis: taken by whoever comes first, renewed while its holder lives, fenced by a number.

Promises:
- The number rises with each new holder, and every write names it. A holder that sleeps past its time harms nothing.
- Where Redis has lost the number, the next one is above all that the new holder knows of.
- A new holder goes on behind a log that may lack entries as `doubting` says, before anybody decides.
- `changed` is called whenever `token`, `held`, `decided` or `holder` may be another.
- A lease ends with the history of its Redis. The holder takes another one there, with a doubt, before it decides on.
- A holder that cannot reach Redis for as long as the lease lasts counts itself out.
- One that counted itself out has another number when it takes the lease again.
- A holder whose process is plainly dead is not waited for, unless that was said of it a short while before. Where it
  lives nevertheless, it is only fenced.

Source: the lease of Redis's documentation ("Distributed locks"), with a fencing token (Kleppmann, 2016).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, DirectoryId
from headrace.base.limits import (
    REDIS_OUSTED_AGAIN_MS,
    REDIS_RELEASE_MS_MAX,
)
from headrace.logs import get_logger
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.metadata.doubting import ANOTHER, Doubting
from headrace.storage.redis.metadata.stream import Position
from headrace.storage.redis.metadata.times import LeaseTimes as LeaseTimes
from headrace.storage.redis.server_side.functions import Answer, Lease, MetadataFunctions, Status

log = get_logger(__name__)


class Holder(NamedTuple):
    """A broker that has the lease, and where it is reached."""

    broker: BrokerId
    directory: DirectoryId
    host: str
    port: int

    def encoded(self) -> str:
        return json.dumps({**self._asdict(), "directory": str(self.directory)})


class ControllerLease:
    """`name`: tells this process from all others. `about`: this broker, once it can be reached; None: not yet."""

    def __init__(
        self,
        client: Redis,
        functions: MetadataFunctions,
        doubting: Doubting,
        *,
        name: str,
        about: Callable[[], Holder | None],
        changed: Callable[[], None],
        times: LeaseTimes,
    ) -> None:
        self.token = 0
        """The highest number of a lease that this node knows of."""
        self.decided: Position | None = None
        """While this node holds it: the last entry of all earlier holders."""
        self.holder: Holder | None = None
        self._before: tuple[Holder, float] | None = None
        """The last other holder, and when it was known to live, in the loop's time."""
        self._held: Lease | None = None
        self._dropped: Lease | None = None
        """Held before, and not given back. Its entries may still be on their way."""
        self._until = 0.0
        self._dead: int | None = None
        """The number of the lease whose holder is plainly dead."""
        self._ousted: tuple[DirectoryId, float] | None = None
        """The last holder that was not waited for, and when, in the loop's time."""
        self._client: Final = client
        self._functions: Final = functions
        self._doubting: Final = doubting
        self._name: Final = name
        self._about = about
        self._changed = changed
        self._times: Final = times
        self._woken = asyncio.Event()

    @property
    def held(self) -> Lease | None:
        """The lease, where this node holds it."""
        return self._held

    def before(self) -> tuple[BrokerId, DirectoryId, float] | None:
        """See `CommitLog.leader_before`."""
        if self._before is None:
            return None
        holder, heard_at = self._before
        return holder.broker, holder.directory, max(0.0, _now() - heard_at)

    async def keep(self) -> None:
        """Take the lease and renew it, until this task is cancelled."""
        while True:
            self._woken.clear()
            try:
                wait_ms = await (self._take() if self._held is None else self._renew())
            except RedisFailure as error:
                log.debug("the controller's lease could not be asked for", reason=str(error))
                wait_ms = self._times.poll
                if self._held is not None and _now() > self._until:
                    self.drop("Redis was not reached for as long as it lasts")
            with suppress(TimeoutError):  # before Python 3.12, `wait_for` may lose a cancellation
                async with asyncio.timeout(wait_ms / 1000):
                    await self._woken.wait()

    def drop(self, reason: str) -> None:
        """Hold it no more: somebody else has it, or may soon."""
        if self._held is None:
            return
        log.info("this broker has the controller's lease no more", reason=reason, token=self.token)
        self._dropped, self._held = self._held, None
        self.decided = self.holder = None
        self._woken.set()
        self._changed()

    def holder_died(self, broker: BrokerId) -> None:
        """Note that this broker's process is plainly dead. Where it has the lease, that is taken from it at once."""
        holder = self.holder
        if self._held is not None or holder is None or holder.broker != broker or self._dead == self.token:
            return
        if self._ousted is not None:
            directory, at = self._ousted
            if directory == holder.directory and _now() < at + REDIS_OUSTED_AGAIN_MS / 1000:
                return  # perhaps only this node cannot reach it
        self._dead = self.token
        self._ousted = holder.directory, _now()
        self._woken.set()

    async def confirm(self) -> bool:
        """Return whether this node held it after this call. Raises RedisFailure."""
        lease = self._held
        if lease is None:
            return False
        await self._renew()
        return self._held == lease

    async def release(self) -> None:
        """Give it to whoever asks next."""
        lease, self._held = self._held, None
        if lease is not None:
            try:
                async with asyncio.timeout(REDIS_RELEASE_MS_MAX / 1000):
                    await self._client.run(self._functions.release(lease))
            except (HeadraceError, TimeoutError) as error:
                log.info("the controller's lease was not given back; it ends by itself", reason=str(error))

    async def _take(self) -> int:
        if (me := self._about()) is None:
            return self._times.poll
        if (dropped := self._dropped) is not None:  # taken again as it is, it would have the same number
            await self._client.run(self._functions.release(dropped))
            self._dropped = None
        asked_at = _now()
        take = self._functions.take(self._name, me.encoded(), self._times.lasts, self.token)
        answer = await self._client.run(take)
        if answer.status is Status.HELD and answer.values[0] == self._dead:
            log.info("the controller is dead: its lease is not waited for", token=answer.number)
            await self._client.run(self._functions.release(Lease(str(answer.values[1]), answer.number)))
            asked_at = _now()
            answer = await self._client.run(take)
        if answer.status is Status.HELD:
            return self._note(answer, asked_at)
        lease = Lease(self._name, answer.number)
        end = await self._doubting.end(lease)  # no earlier holder can add anything from now on
        self.token, self.decided, self.holder = lease.token, end, me
        self._held = lease
        self._until = asked_at + self._times.lasts / 1000
        self._changed()
        return self._times.lasts // 3

    async def _renew(self) -> int:
        lease = self._held
        assert lease is not None, "it is held"
        asked_at = _now()
        answer = await self._client.run(self._functions.renew(lease, self._times.lasts))
        if self._held == lease:
            if answer.status is Status.DONE:
                self._until = asked_at + self._times.lasts / 1000
            else:
                self.drop(ANOTHER if answer.status is Status.CHANGED else "another broker took it")
        return self._times.lasts // 3

    def _note(self, answer: Answer, asked_at: float) -> int:
        """Note another holder. Returns the time until its lease may end, in milliseconds."""
        token, _, about, left_ms = answer.values
        before = self.token, self.holder
        self.token, self.holder = max(self.token, int(token)), _holder(str(about))
        if self.holder is not None:
            self._before = self.holder, asked_at + (int(left_ms) - self._times.lasts) / 1000
        if before != (self.token, self.holder):
            self._changed()
        return min(self._times.poll, int(left_ms) + 1)


def _holder(about: str) -> Holder | None:
    try:
        fields = json.loads(about)
        return Holder(
            BrokerId(int(fields["broker"])),
            DirectoryId(uuid.UUID(fields["directory"])),
            str(fields["host"]),
            int(fields["port"]),
        )
    except (ValueError, KeyError, TypeError):
        return None  # a later version's


def _now() -> float:
    return asyncio.get_running_loop().time()
