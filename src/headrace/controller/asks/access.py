"""Requests to the controller about rights, credentials and quotas of clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.controller.access.acls import AclsDeleted, create_acls, delete_acls
from headrace.controller.access.quotas import QuotaAlteration, alter_quotas
from headrace.controller.access.scram import ScramAlteration, alter_scram
from headrace.controller.asks.asking import Command, Refusals, Setting
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.access.acls import Acl, AclFilter
from headrace.metadata.events import AclCreated, AclDeleted, ScramCredentialChanged
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterQuotas(Command[Refusals]):
    """Change client quotas. One answer for each entity, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_quotas(image, self.alterations, validate_only=self.validate_only)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CreateAcls(Command[Refusals]):
    """Create ACLs. One answer for each, in order; None: it is in force."""

    RESULT: ClassVar[Any] = Refusals
    LEVEL: ClassVar[int] = AclCreated.LEVEL
    SUBJECT: ClassVar[str] = AclCreated.SUBJECT
    REPEATABLE: ClassVar[bool] = False  # another may have deleted it meanwhile
    acls: tuple[Acl, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = create_acls(image, self.acls)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeleteAcls(Command[tuple[AclsDeleted, ...]]):
    """Delete the ACLs that filters match. One answer for each filter, in order."""

    RESULT: ClassVar[Any] = tuple[AclsDeleted, ...]
    LEVEL: ClassVar[int] = AclDeleted.LEVEL
    SUBJECT: ClassVar[str] = AclDeleted.SUBJECT
    REPEATABLE: ClassVar[bool] = False  # another may have created it again meanwhile
    filters: tuple[AclFilter, ...]

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[tuple[AclsDeleted, ...] | Refusal]:
        decision = delete_acls(image, self.filters)
        return Decision(decision.events, tuple(decision.result))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterScram(Command[Refusals]):
    """Change SCRAM credentials. One answer for each alteration, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    LEVEL: ClassVar[int] = ScramCredentialChanged.LEVEL
    SUBJECT: ClassVar[str] = ScramCredentialChanged.SUBJECT
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    alterations: tuple[ScramAlteration, ...]
    secret: bytes = field(default=b"", repr=False)
    """As in `alter_scram`."""

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_scram(image, self.alterations, self.secret)
        return Decision(decision.events, tuple(decision.result))
