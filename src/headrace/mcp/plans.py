"""Plans that wait for an approval.

Promises: a plan is kept for a bounded time, and there are boundedly many. It is carried out once at most.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from headrace.base.errors import HeadraceError
from headrace.base.limits import MCP_PLAN_MS_MAX, MCP_PLANS_MAX
from headrace.operations.changes.plan import Plan

Make: TypeAlias = Callable[[], Awaitable[Plan]]
UNKNOWN: Final = (
    "No plan with this hash waits for an approval: it was carried out, refused, or is older than "
    f"{MCP_PLAN_MS_MAX // 60_000} minutes. Ask for the plan again."
)
ANOTHER: Final = (
    "The ground has changed, and the plan is another one by now: nothing was changed. Ask for the plan again, and look "
    "at it before you approve it."
)


class _Kept(NamedTuple):
    make: Make
    at: float


class Plans:
    """The plans of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def add(self, make: Make) -> Plan:
        """Make a plan, and keep it unless it has an obstacle. Raises HeadraceError."""
        plan = await make()
        self._kept.pop(plan.digest, None)
        if not plan.obstacle:
            self._kept[plan.digest] = _Kept(make, self._clock())
        while len(self._kept) > MCP_PLANS_MAX:
            self._kept.popitem(last=False)
        return plan

    async def carry_out(self, digest: str, name: str) -> Plan:
        """Carry out the plan with this hash. `name`: what is gone with its data afterwards. Raises HeadraceError where
        it is another plan by now, or may not be carried out.
        """
        kept = self._kept.get(digest)
        if kept is None or self._clock() - kept.at > MCP_PLAN_MS_MAX / 1000:
            self._kept.pop(digest, None)
            raise HeadraceError(UNKNOWN)
        plan = await kept.make()
        if plan.digest != digest or plan.obstacle:
            self._kept.pop(digest, None)
            raise HeadraceError(ANOTHER if plan.digest != digest else plan.obstacle)
        if plan.loses != name:
            raise HeadraceError(
                f"'{plan.loses}' is gone with its data afterwards: approve it with name='{plan.loses}'."
                if plan.loses
                else "Nothing is lost by this plan: approve it without a name."
            )
        if self._kept.pop(digest, None) is None:  # another approval was faster
            raise HeadraceError(UNKNOWN)
        await plan.carry_out()
        return plan
