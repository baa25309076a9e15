"""Changes the ISR of the partitions that this broker leads: sends their proposals, and finds late followers.

Promises:
- One request is under way at a time, with everything that is wanted by then.
- A proposal that is refused for good is taken back.
- A proposal that may yet be carried out is sent again, until the image shows its outcome.
- A failed disk is reported at once.

Loop-only. Sources: KIP-497, KIP-841.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition
from headrace.base.limits import ISR_BACKOFF_MS, ISR_PROPOSALS_PER_ASK_MAX
from headrace.base.ports import Clock
from headrace.broker.cluster.control import Control
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.disk_room import Waiting
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.controller.decision import Refusal
from headrace.logs import get_logger
from headrace.metadata.image import MetadataImage
from headrace.replica.leader import ANY_EPOCH, ProposeIsr
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.controller.isr import IsrProposal

log = get_logger(__name__)

ASKED_AGAIN: Final = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NOT_CONTROLLER)
"""The controller's state is not this broker's: one of the two is behind, and an earlier request may have arrived."""
NOT_DONE: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)
"""The controller decided on the state that is known here, and did nothing. After any other refusal, this broker does
not lead any more. An earlier request may have arrived before that, and nothing is taken back until the image shows it.
"""
CHECKS_PER_LAG: Final = 2
"""Looks at the followers in the time after which one is too late, as in Kafka."""


class IsrKeeper:
    """One per broker."""

    def __init__(
        self,
        *,
        node: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
        partitions: Partitions,
        control: Control,
        image: Callable[[], MetadataImage],
        heard_at: Callable[[], Mapping[BrokerId, float]],
        clock: Clock,
        lag_max_s: float,
        on_bug: OnBug,
    ) -> None:
        self._node = node
        self._broker_epoch = broker_epoch
        self._partitions = partitions
        self._control = control
        self._image = image
        self._heard_at = heard_at
        self._clock = clock
        self._lag_max_s = lag_max_s
        self._on_bug = on_bug
        self._wanted: dict[Partition, None] = {}
        """Not by name: a repeated proposal of an ended leadership must not delay those of the next one."""
        self._doubted: dict[TopicPartition, tuple[LeaderEpoch, PartitionEpoch]] = {}
        """The states on which proposals with an unknown outcome were sent: they may yet arrive."""
        self._failed: dict[TopicPartition, None] = {}
        """Partitions that this broker serves no more, as their disk has failed: others are to lead them."""
        self._full: dict[TopicPartition, None] = {}
        """Partitions to which nothing can be appended here, as their disk is full: others are to lead, where they have
        room."""
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        self._looking = started(self._look(), "looks at followers", self._on_bug)

    def propose(self, partition: Partition, _: ProposeIsr) -> None:
        """Send the partition's proposal, with its latest state."""
        self._wanted[partition] = None
        self._ask_soon()

    def leave(self, key: TopicPartition) -> None:
        """Ask that others lead the partition, and that this broker counts no more in its ISR."""
        self._failed[key] = None
        self._ask_soon()

    def leave_full(self, waiting: Sequence[Waiting]) -> None:
        """Ask the same for those of these that others could lead, or whose ISR counts this broker. Called again while
        they wait."""
        for each in waiting:
            if isinstance(each, Replica) and each.availability is ErrorCode.NONE:
                known = self._image().partition(each.topic_partition)
                if known is not None and self._node in known.isr and len(known.isr) > 1:
                    self._full[each.topic_partition] = None
        if self._full:
            self._ask_soon()

    def _ask_soon(self) -> None:
        if self._asking is None and not self._stopped:
            self._asking = started(self._ask(), "proposals of in-sync replicas", self._on_bug)

    async def _ask(self) -> None:
        try:
            await asyncio.sleep(0)  # with everything that is wanted in this turn
            while (self._wanted or self._failed or self._full) and not self._stopped:
                await self._leave_some()
                await self._leave_some_full()
                partitions = list(self._wanted)[:ISR_PROPOSALS_PER_ASK_MAX]
                for each in partitions:
                    del self._wanted[each]
                await self._ask_for([each for each in partitions if each.isr.leader.proposed is not None])
        finally:
            self._asking = None

    async def _leave_some(self) -> None:
        keys = list(self._failed)[:ISR_PROPOSALS_PER_ASK_MAX]
        for key in keys:
            del self._failed[key]
        if not keys:
            return
        from headrace.controller.asks.replicas import LeaveIsr

        ask = LeaveIsr(broker_id=self._node, broker_epoch=self._broker_epoch(), partitions=tuple(keys))
        try:
            refusal = await self._control.submit(ask)
        except HeadraceError as error:
            refusal = Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        if refusal is not None:
            log.info("the controller was not told of failed partitions; told again", reason=refusal.message)
            self._later(partial(self._leave_all, keys))

    async def _leave_some_full(self) -> None:
        keys = list(self._full)[:ISR_PROPOSALS_PER_ASK_MAX]
        for key in keys:
            del self._full[key]
        if keys:
            from headrace.controller.asks.replicas import LeaveIsr

            epoch = self._broker_epoch()
            ask = LeaveIsr(broker_id=self._node, broker_epoch=epoch, partitions=tuple(keys), for_room=True)
            with suppress(HeadraceError):  # it is asked again while they wait
                await self._control.submit(ask)

    def _leave_all(self, keys: Sequence[TopicPartition]) -> None:
        for key in keys:
            self.leave(key)

    async def _ask_for(self, partitions: list[Partition]) -> None:
        proposals = [(each, each.isr.leader.proposal) for each in partitions if each.availability is ErrorCode.NONE]
        if not proposals:
            return
        from headrace.controller.asks.replicas import AlterIsr

        ask = AlterIsr(
            broker_id=self._node,
            broker_epoch=self._broker_epoch(),
            proposals=tuple(self._asked(partition, wanted) for partition, wanted in proposals),
        )
        answer: tuple[ErrorCode, ...] | Refusal
        try:
            answer = await self._control.submit(ask)
        except HeadraceError as error:
            answer = Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        if isinstance(answer, Refusal):
            log.info("the controller did not answer for the in-sync replicas; asked again", reason=answer.message)
            for partition, wanted in proposals:
                self._doubted[partition.topic_partition] = (wanted.leader_epoch, wanted.partition_epoch)
            self._again([partition for partition, _ in proposals])
            return
        behind = []
        for (partition, wanted), code in zip(proposals, answer, strict=True):
            if code is ErrorCode.NONE:
                self._doubted.pop(partition.topic_partition, None)
            elif code in ASKED_AGAIN:
                behind.append(partition)
            elif code in NOT_DONE:
                self._refuse(partition, wanted)
        if behind:
            self._again(behind)

    def _refuse(self, partition: Partition, wanted: ProposeIsr) -> None:
        state = (wanted.leader_epoch, wanted.partition_epoch)
        if self._doubted.get(partition.topic_partition) == state:
            self._later(partial(partition.isr.on_doubted, *state))
        else:
            partition.isr.on_refused(*state)
            self._later(partition.isr.propose_again)  # after a while, for it may want the same again at once

    def _again(self, partitions: list[Partition]) -> None:
        """Propose again after a while; by then, the image may have settled it."""

        def ask_again() -> None:
            for partition in partitions:
                if (wanted := partition.isr.leader).proposed is not None:
                    self.propose(partition, wanted.proposal)

        self._later(ask_again)

    def _later(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(ISR_BACKOFF_MS / 1000, work)

    def _asked(self, partition: Partition, wanted: ProposeIsr) -> IsrProposal:
        from headrace.controller.isr import IsrMember, IsrProposal

        topic_id, index = partition.topic_partition
        return IsrProposal(
            topic_id=topic_id,
            partition=index,
            leader_epoch=wanted.leader_epoch,
            partition_epoch=wanted.partition_epoch,
            isr=tuple(
                IsrMember(broker_id=member, broker_epoch=self._epoch(member, seen)) for member, seen in wanted.isr
            ),
        )

    def _epoch(self, member: BrokerId, seen: BrokerEpoch) -> BrokerEpoch:
        """Return the epoch of a member. For the leader, and a member that has not fetched in this epoch, it is that of
        the image."""
        if seen != ANY_EPOCH:
            return seen
        known = self._image().brokers.get(member)
        return ANY_EPOCH if known is None else known.epoch

    async def _look(self) -> None:
        while not self._stopped:
            await asyncio.sleep(self._lag_max_s / CHECKS_PER_LAG)
            heard_at = self._heard_at()
            states = {each.topic_partition: each.isr.leader.state for each in self._partitions}
            self._doubted = {key: state for key, state in self._doubted.items() if states.get(key) == state}
            for partition in list(self._partitions):
                if partition.has_followers:
                    partition.isr.check(self._lag_max_s, heard_at)

    async def stop(self) -> None:
        self._stopped = True
        tasks = [task for task in (self._asking, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
