"""Listeners that serve whoever reaches them, for `headrace doctor`. Each broker alone knows its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.limits import DOCTOR_ASK_MS_MAX
from headrace.broker.listeners import described_open
from headrace.net.client.admin import Admin
from headrace.operations.finding import Finding

OPENED: Final = "open listener"
"""The kind of these findings."""


async def opened(admin: Admin, brokers: Sequence[int]) -> list[Finding]:
    """The findings of these brokers, as far as they answer."""
    return [finding for found in await asyncio.gather(*(_of(admin, each) for each in brokers)) for finding in found]


async def _of(admin: Admin, broker: int) -> list[Finding]:
    try:
        async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
            configs = {config.name: config.value for config in await admin.broker_configs(broker)}
    except (HeadraceError, TimeoutError):  # that it does not answer is told otherwise
        return []
    listeners = described_open({key: value for key, value in configs.items() if value is not None})
    return [
        Finding(
            OPENED,
            f"broker {broker}",
            f"listener {each} asks nobody who it is, and others than this machine's reach it",
            "give it SASL, or SSL with ssl.client.auth=required (docs/SECURITY.md)",
            is_wrong=False,
        )
        for each in listeners
    ]
