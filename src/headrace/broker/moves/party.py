"""This broker, as a party to moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.base.ports import Clock
from headrace.base.values import Value
from headrace.broker.cluster.control import Control
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.traces import Span
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Party(Value):
    """One per broker: what both the owner's part and the target's rest on."""

    node: BrokerId
    broker_epoch: Callable[[], BrokerEpoch]
    image: Callable[[], MetadataImage]
    partitions: Partitions
    control: Control
    clock: Clock
    span: Span
