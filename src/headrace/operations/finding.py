"""One problem that `headrace doctor` tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

BROKER_DOWN: Final = "broker down"
VOTER_DOWN: Final = "voter down"
TOO_FEW_FOR_ALL: Final = "below min.insync.replicas"
OUT_OF_SYNC: Final = "out of sync"
OF_BROKERS: Final = (TOO_FEW_FOR_ALL, VOTER_DOWN, OUT_OF_SYNC)
"""Kinds of findings that brokers which are down may cause."""
MORE: Final = "so are "
"""A finding that counts more partitions like those before it begins so."""
START: Final = "start broker "
"""The advice of such a finding begins so, before the ids."""

SUBJECTS_NAMED_MAX: Final = 3
"""Partitions that are named in one line, where the same ails several and the same mends them."""


class Finding(NamedTuple):
    """One problem."""

    kind: str
    subject: str
    text: str
    todo: str
    is_wrong: bool = True
    """False: it may be intended."""


def causes(found: Sequence[Finding]) -> list[Finding]:
    """Return a finding for each cause: what brokers that are down bring about is told with them. A broker stands where
    the worst of that stands in `found`, which has the worst first."""
    down = {each.subject.removeprefix("broker "): each for each in found if each.kind == BROKER_DOWN}
    told: list[Finding] = []
    brokers: list[str] = []
    for finding in found:
        if not finding.text.startswith(MORE):  # of which the one before is one
            brokers = _brokers_of(finding) if finding.kind in OF_BROKERS else []
        if not brokers or not down.keys() >= set(brokers):
            if finding not in told:
                told.append(finding)
            continue
        told += [each for broker in brokers if (each := down[broker]) not in told]
    return [_with_effects(each, found) if each.kind == BROKER_DOWN else each for each in told]


class Told(NamedTuple):
    """One line for people: a problem, and all that has it."""

    subjects: tuple[str, ...]
    text: str
    todo: str
    is_wrong: bool

    @property
    def named(self) -> str:
        """The first of its subjects, and how many more there are."""
        more = len(self.subjects) - SUBJECTS_NAMED_MAX
        return ", ".join(self.subjects[:SUBJECTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def told(found: Sequence[Finding]) -> list[Told]:
    """Return a line for each cause: subjects that the same ails, and the same mends, are told together."""
    alike: dict[Finding, list[str]] = {}
    for each in causes(found):
        alike.setdefault(each._replace(subject=""), []).append(each.subject)
    return [Told(tuple(subjects), each.text, each.todo, each.is_wrong) for each, subjects in alike.items()]


def _brokers_of(finding: Finding) -> list[str]:
    """The ids of the brokers whose start mends it; empty: something else does."""
    return finding.todo.removeprefix(START).split(", ") if finding.todo.startswith(START) else []


def _with_effects(broker: Finding, found: Sequence[Finding]) -> Finding:
    """The finding of a broker that is down, with what comes of that beside copies that are not in sync."""
    return broker._replace(text="; ".join((broker.text, *_effects(broker.subject.removeprefix("broker "), found))))


def _effects(broker: str, found: Sequence[Finding]) -> Iterator[str]:
    caused = [each for each in found if each.kind in OF_BROKERS and broker in _brokers_of(each)]
    if refusing := sum(each.kind == TOO_FEW_FOR_ALL for each in caused):
        is_more = any(each.kind == TOO_FEW_FOR_ALL and each.text.startswith(MORE) for each in found)
        number = f"more than {refusing}" if is_more else refusing
        yield f"{number} of these take no writes at acks=all (min.insync.replicas)"
    yield from (each.text for each in caused if each.kind == VOTER_DOWN)
