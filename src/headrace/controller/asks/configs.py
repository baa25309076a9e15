"""Requests to the controller about configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.controller.asks.asking import Command, Refusals, Setting
from headrace.controller.configs import ResourceAlteration, alter_configs
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlterConfigs(Command[Refusals]):
    """Change configs. One answer for each resource, in order; None: done."""

    RESULT: ClassVar[Any] = Refusals
    REPEATABLE: ClassVar[bool] = False  # another may have set it meanwhile, and would be overwritten
    SETTLED_FIRST: ClassVar[bool] = True
    resources: tuple[ResourceAlteration, ...]
    replace_all: bool = False
    validate_only: bool = False

    def decide(self, image: MetadataImage, setting: Setting) -> Decision[Refusals | Refusal]:
        decision = alter_configs(
            image,
            self.resources,
            replace_all=self.replace_all,
            validate_only=self.validate_only,
            broker_configs=setting.broker_configs,
            node=setting.node,
        )
        return Decision(decision.events, tuple(decision.result))
