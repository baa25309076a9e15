"""Changes: first the plan and its command, then the change.

Promises:
- A plan changes nothing, and everybody who sees the console may ask for one.
- A change is carried out only by a console that allows changes, and for a form of its own.
- The plan is made again before that, and has to be the one that was seen.
- The log says who asked for what, and why it was refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError
from headrace.base.limits import CONSOLE_FIRST_MS
from headrace.console.guarding import form_of
from headrace.console.page import console_of, framed, tokens_of
from headrace.console.rendering import rendered
from headrace.console.state import Console
from headrace.operations.changes.plan import Plan

A = TypeVar("A")
NOT_ALLOWED: Final = (
    "This console is read-only: it changes things where it is started with 'headrace console --allow-changes'."
)
NOT_OWN: Final = "This form is not of this console, or it is too old: open the page again."
ANOTHER: Final = "The plan is another one by now: look at the new plan, and apply that."
_LOG: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[A]):
    """A kind of change: its form, its plan, and what carries it out. `A`: what is asked for, a named tuple of texts."""

    path: str
    template: str
    title: Callable[[A], str]
    asked: type[A]
    is_asked: Callable[[A], bool]
    """Whether the form is filled in."""
    plan: Callable[[Console, A], Awaitable[Plan]]
    """Raises HeadraceError."""
    words: Callable[[A], list[str]]
    """The command that does the same."""
    after: Callable[[A], str]
    """The page that shows the effect."""
    more: Callable[[Console], Mapping[str, Any]] = lambda _: {}
    """Values of the form that the cluster gives."""

    def routes(self) -> tuple[Route, Route]:
        return Route(self.path, self._form, methods=["GET"]), Route(self.path, self._apply, methods=["POST"])

    def _read(self, settings: Mapping[str, str]) -> A:
        names: tuple[str, ...] = self.asked._fields  # type: ignore[attr-defined]
        return self.asked(*(settings.get(name, "").strip() for name in names))

    async def _form(self, request: Request) -> Response:
        """The form, and under it the plan where one is asked for."""
        console, asked = console_of(request), self._read(request.query_params)
        await console.seen.settled(CONSOLE_FIRST_MS)
        values: dict[str, Any] = {"asked": asked, "plan": None, "failed": "", "command": "", **self.more(console)}
        if self.is_asked(asked):
            try:
                plan = await self.plan(console, asked)
            except (HeadraceError, OSError, TimeoutError) as error:
                values["failed"] = str(error) or "No answer came in time."
            else:
                values |= {"plan": plan, "failed": plan.obstacle, "command": console.command(*self.words(asked))}
        return framed(request, self.template, {"title": self.title(asked), "path": self.path, **values})

    async def _apply(self, request: Request) -> Response:
        console, form = console_of(request), await form_of(request)
        asked = self._read(form)
        refused = _refusal(request, console, form)
        if not refused:
            try:
                plan = await self.plan(console, asked)
                refused = plan.obstacle or ("" if plan.digest == form.get("plan") else ANOTHER)
                if not refused:
                    await plan.carry_out()
            except (HeadraceError, OSError, TimeoutError) as error:
                refused = str(error) or "No answer came in time."
        client = request.client.host if request.client else None
        command = console.command(*self.words(asked))
        if refused:
            _LOG.warning("the console refused a change", command=command, client=client, reason=refused)
            part = rendered("parts/failed.html", {"text": refused})
            status = 409 if console.allows_changes else 403
            return framed(request, "page.html", {"title": "Refused", "part": part}, status)
        _LOG.info("changed by the console", command=command, client=client)
        for feed in console.feeds:
            feed.want()
        return RedirectResponse(self.after(asked), 303)


def _refusal(request: Request, console: Console, form: Mapping[str, str]) -> str:
    """Why nothing may be changed by this request; empty where it may."""
    if not console.allows_changes:
        return NOT_ALLOWED
    return "" if tokens_of(request).is_own(request, form) else NOT_OWN
