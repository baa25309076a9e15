"""All that the tools share: how the cluster is reached, by whom, and what is allowed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.mcp.plans import Plans
from headrace.net.client.cluster import Cluster
from headrace.net.client.security.settings import ClientSecurity
from headrace.operations.masking import Masks
from headrace.operations.reaching import Reach
from headrace.operations.schemas.records import Schemas

ANONYMOUS = "User:ANONYMOUS"
"""As brokers call those who did not log in."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """One server of tools, which acts as one principal."""

    reach: Reach
    """For work that has its own patience, or connections of its own."""
    cluster: Cluster
    """For short questions."""
    principal: str = ANONYMOUS
    words: Sequence[str] = ()
    """Options with which a command reaches the same cluster."""
    allows_changes: bool = False
    masks: Masks = field(default_factory=Masks)
    schemas: Schemas | None = None
    """The schemas that keys and values are decoded by; None: they are told as they are."""
    pipelines: Path | None = None
    """The directory of the pipelines' files that may be looked at; None: there is none."""
    metrics_credentials: str = field(default="", repr=False)
    """USER:PASSWORD or `Bearer TOKEN`, for brokers' metrics; empty: none are given."""
    plans: Plans = field(default_factory=Plans)

    async def close(self) -> None:
        """End what works for it."""
        if self.schemas is not None:
            await self.schemas.close()

    def command(self, *words: str) -> str:
        """A command that does the same, for people to copy."""
        return shlex.join(["headrace", *words, *self.words])


def principal_of(security: ClientSecurity) -> str:
    """The principal, as far as the credentials tell it: brokers may map a certificate's or a token's to another."""
    if security.sasl is not None:
        return f"User:{security.sasl.user}" if security.sasl.user else "the subject of its token"
    shows_one = security.tls is not None and security.tls.stores.has_identity
    return "the subject of its certificate" if shows_one else ANONYMOUS
