"""Carries batches that come to a broker which does not lead a partition any more, or not yet, as it is handed over.

The old owner carries them to the new one, once that may write, in the order in which they came. It does so for a while.
The new owner keeps batches that come before its log is open.

Promises:
- Only batches of idempotent producers are carried: by their sequences, the new owner sees which overtook others, or
  came twice.
- Batches of other producers wait until the new owner may write, and are then refused, so that their first try there
  succeeds. So do those of transactions: the new owner has to ask the coordinator about the first of each.
- An answer is the new owner's. A batch that was carried and not answered times out, for it may be written.
- Batches are carried in the order in which they came. Once one is refused for want of room, so are all that come after
  it.
- While batches may be carried, producers whose batches have overtaken others must send again to the new owner.
- Everything that waits is bounded in bytes and time.

Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headrace.base.ids import BrokerId, Offset, TopicPartition
from headrace.base.ports import Buffer
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.replica import WriteRefusal
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.storage.engine.appending import Appended

if TYPE_CHECKING:
    from headrace.base.addresses import Address
    from headrace.broker.partitions.intake.heirs import Heir
    from headrace.metadata.delta import ImageDelta
    from headrace.metadata.moves import Move


class Forwarded(NamedTuple):
    """The new owner's answer for a batch that it has appended."""

    base_offset: Offset
    log_append_time_ms: int
    log_start_offset: Offset
    tells: bool = True
    """Whether the answer is to name the new leader."""


Done: TypeAlias = Callable[[Appended | Forwarded | WriteRefusal], None]
"""Called with the outcome of a batch."""
Forward: TypeAlias = Callable[[TopicPartition, Buffer, bool, Done], bool]
"""(partition, batch, needs_isr, done): returns whether the batch is accepted, and `done` will be called. Otherwise it
is to be refused."""


class Takes(Protocol):
    """A partition that this broker leads."""

    def take(self, records: Buffer, *, needs_isr: bool, done: Done) -> None: ...


class Forwarder:
    """One per broker. `address_of` gives another broker's address, where that is known."""

    def __init__(
        self,
        *,
        node: BrokerId,
        image: Callable[[], MetadataImage],
        address_of: Callable[[BrokerId], Address | None],
        on_bug: OnBug,
        security: ClientSecurity = PLAIN,
    ) -> None:
        """`security`: of connections to other brokers."""
        self.node = node
        self.security = security
        self.image = image
        self.address_of = address_of
        self.on_bug = on_bug
        self.waiting_bytes = 0
        """Bytes that wait, over all partitions."""
        self._heirs: dict[TopicPartition, Heir] = {}
        self.working: set[Heir] = set()
        """Heirs with work, even those that accept nothing more and wait for answers."""
        self._is_stopping = False

    def on_delta(self, delta: ImageDelta) -> None:
        """Follow the moves in the image. Called before roles change."""
        if delta.before is EMPTY_IMAGE or self._is_stopping:
            return  # a broker that has just started was nobody's leader
        for key, move in delta.after.moves.items():
            if move.state is not None and self._is_new_to_it(delta.before.moves.get(key), move):
                self._begin(key, move)
        for heir in list(self._heirs.values()):
            heir.news.set()

    def _is_new_to_it(self, before: Move | None, move: Move) -> bool:
        """Whether this broker was the owner until now, or is it from now on."""
        was_sealed = before is not None and before.state is not None
        if move.target == self.node:
            return not was_sealed or before is None or before.target != self.node
        return move.source == self.node and not was_sealed

    def _begin(self, key: TopicPartition, move: Move) -> None:
        from headrace.broker.partitions.intake.heirs import Heir

        earlier = self._heirs.pop(key, None)
        self._heirs[key] = heir = Heir(self, key, move.target)
        heir.begin()
        if earlier is not None:
            earlier.hand_to(heir)

    def take(self, key: TopicPartition, records: Buffer, needs_isr: bool, done: Done) -> bool:
        """`Forward`."""
        heir = self._heirs.get(key)
        return heir is not None and heir.takes(records, needs_isr=needs_isr, done=done)

    def on_led(self, key: TopicPartition, partition: Takes) -> None:
        """Note that the partition's log is open here: batches that came before go there first."""
        if (heir := self._heirs.pop(key, None)) is not None:
            heir.open_into(partition)

    def forget(self, key: TopicPartition, heir: Heir) -> None:
        if self._heirs.get(key) is heir:
            del self._heirs[key]

    async def stop(self) -> None:
        """Stop: waiting batches are refused, and carried ones are awaited."""
        self._is_stopping = True
        heirs = list(self.working)
        for heir in heirs:
            heir.end()
        await asyncio.gather(*(heir.over() for heir in heirs))
