"""Requests to the controller about brokers and the quorum. Most of them are more than a decision on the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId, ProducerId
from headrace.base.values import Value
from headrace.controller.asks.asking import Ask, Command, Setting
from headrace.controller.brokers import allocate_producer_ids
from headrace.controller.decision import Decision, Refusal
from headrace.controller.levels import finalize_level
from headrace.metadata.events import LevelFinalized
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import Endpoint, Engine
from headrace.wire.ailments import State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FinalizeLevel(Command[None]):
    """Raise the cluster's feature level."""

    RESULT: ClassVar[Any] = None
    LEVEL: ClassVar[int] = LevelFinalized.LEVEL
    SUBJECT: ClassVar[str] = LevelFinalized.SUBJECT
    level: int
    may_fall: bool = False
    """As in `finalize_level`."""
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusal | None]:
        return finalize_level(
            image, self.level, may_fall=self.may_fall, voters=setting.voters, validate_only=self.validate_only
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AllocateProducerIds(Command[tuple[ProducerId, int]]):
    """Allocate a block of producer ids. The answer is its first id, and their number."""

    RESULT: ClassVar[Any] = tuple[ProducerId, int]
    broker_id: BrokerId
    broker_epoch: BrokerEpoch

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[ProducerId, int] | Refusal]:
        return allocate_producer_ids(image, broker_id=self.broker_id, broker_epoch=self.broker_epoch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RegisterBroker(Ask[BrokerEpoch]):
    """Register a process that has started. It becomes a learner of the quorum, where it is no member, and gets its
    epoch."""

    RESULT: ClassVar[Any] = BrokerEpoch
    cluster_id: ClusterId
    broker_id: BrokerId
    directory_id: DirectoryId
    incarnation: IncarnationId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    lineage: str | None = None
    """The lineage of its log; None: it has none yet, and follows any."""
    engine: Engine = Engine.LOCAL
    """The keeper of its partition logs. Brokers of older versions do not say; theirs are local."""
    level: int = 0
    """The highest feature level of its release. Brokers of older versions do not say; theirs is 0."""
    level_min: int = 0
    """The lowest one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Heartbeat(Ask[bool]):
    """Report that the broker lives; the answer is whether it is unfenced now.

    - `ready`: it has replayed its registration and serves.
    - `stopping`: it wants to lead nothing any more.
    - `is_full`: its disk has no room for what clients write.
    - `states`: its other problems.
    - `clock_ms`: its clock when it sent this; 0: it does not say.
    - `level`: as in `RegisterBroker`, which may have reached a controller that did not know it.
    """

    RESULT: ClassVar[Any] = bool
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    ready: bool
    stopping: bool = False
    is_full: bool = False
    states: tuple[State, ...] = ()
    clock_ms: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RemoveBroker(Ask[None]):
    """Remove a stopped broker for good, from the quorum too."""

    RESULT: ClassVar[Any] = None
    REPEATABLE: ClassVar[bool] = False
    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ChangeVoter(Ask[None]):
    """Make a member a voter, or a learner. Without a directory: whichever the broker has."""

    RESULT: ClassVar[Any] = None
    REPEATABLE: ClassVar[bool] = False
    broker_id: BrokerId
    directory_id: DirectoryId | None
    voter: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumReplica(Value):
    """One member of the quorum, as the leader knows it. Times in milliseconds since 1970; -1: not known."""

    broker_id: BrokerId
    directory_id: DirectoryId
    voter: bool
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class QuorumView(Value):
    """The quorum, as its leader knows it."""

    leader: BrokerId
    epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]
    outlook: str = ""
    """The prospects of the learners while there are fewer voters than `controller.voters`; empty: there are enough."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadQuorum(Ask[QuorumView]):
    """Ask for the state of the quorum."""

    RESULT: ClassVar[Any] = QuorumView
