"""The form of a request to the controller, and the setting in which it is decided."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from headrace.base.ids import BrokerId
from headrace.base.values import Value
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Setting(Value):
    """The place of a decision: the configs with which the controller's broker was started."""

    broker_configs: Mapping[str, str]
    node: BrokerId
    has_store: bool = False
    """Whether there is a durable store."""
    unable: Mapping[BrokerId, str] = field(default_factory=dict)
    """As in `moves.Unable`."""
    voters: tuple[BrokerId, ...] = ()
    """The quorum's voters; empty where the commit log has none."""
    full: Collection[BrokerId] = ()
    """Brokers that reported a full disk with their last heartbeat to this node."""


R_co = TypeVar("R_co", covariant=True)


class Ask(Value, Generic[R_co]):
    """A request to the controller, with an answer of type R_co or a Refusal."""

    __slots__ = ()
    RESULT: ClassVar[Any]
    """R_co, as a type with a known JSON form."""
    LEVEL: ClassVar[int] = 0
    """The lowest metadata level (`metadata.levels`) of a controller that knows this request."""
    SUBJECT: ClassVar[str] = ""
    """The name, for people, of what a controller below that does not know."""
    REPEATABLE: ClassVar[bool] = True
    SETTLED_FIRST: ClassVar[bool] = False
    """True: a client uses the result at once, so that logs are opened and closed before it is answered."""


class Command(Ask[R_co]):
    """A request that is decided on the image."""

    __slots__ = ()

    @abstractmethod
    def decide(self, image: MetadataImage, setting: Setting) -> Decision[R_co | Refusal]: ...


Refusals = tuple[Refusal | None, ...]
"""One for each of several wishes, in order; None: it is done."""
