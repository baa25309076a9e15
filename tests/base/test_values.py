"""Values that are made from others: exactly as the standard library makes them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from headrace.base.values import replaced
from headrace.coordinators.groups.consumer.model import ConsumerGroup, ConsumerMember, MemberState
from headrace.coordinators.groups.model import Group, GroupState


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (Group(id="g"), {"state": GroupState.STABLE, "generation": 3}),
        (Group(id="g", generation=2), {}),
        (ConsumerGroup(epoch=1), {"epoch": 2, "target_epoch": 2}),
        (ConsumerMember(id="m", topics=("t",)), {"state": MemberState.UNREVOKED_PARTITIONS, "id": "n"}),
    ],
)
def test_it_is_what_dataclasses_make_of_it(value: object, changes: dict[str, object]) -> None:
    before = replace(value)  # type: ignore[type-var]
    made = replaced(value, **changes)  # type: ignore[type-var]
    assert made == replace(value, **changes)  # type: ignore[type-var]
    assert type(made) is type(value)
    assert value == before, "what it was made of is as it was"


def test_what_is_made_is_frozen_and_has_no_other_fields() -> None:
    made = replaced(ConsumerGroup(), epoch=5)
    with pytest.raises(FrozenInstanceError):
        made.epoch = 6  # type: ignore[misc]
    with pytest.raises(KeyError):
        replaced(made, epochs=6)  # type: ignore[call-arg]


def test_a_class_that_makes_more_of_its_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        low: int
        high: int

        def __post_init__(self) -> None:
            assert self.low <= self.high

    with pytest.raises(AssertionError):
        replaced(Checked(1, 2), low=3)
