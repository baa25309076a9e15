"""Changes: first the plan and its command, then the change.

Promises:
- A plan changes nothing, and everybody who sees the console may ask for one.
- A change is carried out only by a console that allows changes, by its viewer's own client, and for a form of its own.
- A form is carried out once, however often it is sent: the answer is that of the first time.
- The plan is made again before that, and has to be the one that was seen.
- Where data go, the viewer types their name.
- Each wish is a line of the log: who, from where, the command, the plan's digest, and the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import CONSOLE_FIRST_MS
from headrace.console.guarding import TOKEN, form_of
from headrace.console.page import console_of, framed, is_forbidden, tokens_of
from headrace.console.rendering import rendered
from headrace.console.sent import sent_of
from headrace.console.sheets import Sheet
from headrace.console.state import Console
from headrace.logs import get_logger
from headrace.net.client.errors import OutcomeUnknownError, RefusedError
from headrace.operations.changes.plan import Plan

A = TypeVar("A")
NOT_ALLOWED: Final = (
    "This console is read-only: it changes things where it is started with 'headrace console --allow-changes'."
)
NOT_OWN: Final = "This form is not of this console, or it is too old: open the page again."
ANOTHER: Final = "The plan is another one by now: look at the new plan, and apply that."
NO_ANSWER: Final = "No answer came in time."
TYPED: Final = "typed"
SECRET: Final = "password"
PLAN: Final = "plan"
_LOG: Final = get_logger("headrace.audit")


def _no_name(_: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[A]):
    """A kind of change: its form, its plan, and what carries it out. `A`: what is asked for, a named tuple of texts."""

    path: str
    title: Callable[[A], str]
    asked: type[A]
    is_asked: Callable[[A], bool]
    """Whether the form is filled in."""
    plan: Callable[[Console, A], Awaitable[Plan]]
    """Raises HeadraceError."""
    after: Callable[[A], str]
    """The page that shows the effect."""
    template: str = "sheet.html"
    sheet: Sheet | None = None
    """For that template."""
    more: Callable[[Console], Mapping[str, Any]] = lambda _: {}
    """Values of the form that the cluster gives."""
    typed: Callable[[A], str] = _no_name
    """The name that has to be typed, where the plan does not say; empty: none."""
    secret: Callable[[Console, A, str], Awaitable[object]] | None = None
    """Carries it out with a password, which is typed where the plan is applied."""
    verbatim: frozenset[str] = frozenset()
    """Fields whose blanks at both ends count."""

    def routes(self) -> tuple[Route, Route]:
        return Route(self.path, self._form, methods=["GET"]), Route(self.path, self._posted, methods=["POST"])

    def _read(self, settings: Mapping[str, str]) -> A:
        names: tuple[str, ...] = self.asked._fields  # type: ignore[attr-defined]
        texts = {name: settings.get(name, "") for name in names}
        return self.asked(*(text if name in self.verbatim else text.strip() for name, text in texts.items()))

    async def _form(self, request: Request) -> Response:
        return await self._planned(request, self._read(request.query_params))

    async def _planned(self, request: Request, asked: A) -> Response:
        """The form, and under it the plan where one is asked for."""
        console = console_of(request)
        await console.seen.settled(CONSOLE_FIRST_MS)
        values: dict[str, Any] = {"asked": asked, PLAN: None, "failed": "", "command": "", **self.more(console)}
        status = 200
        if self.is_asked(asked):
            try:
                plan = await self.plan(console, asked)
            except (HeadraceError, OSError, TimeoutError) as error:
                values["failed"] = str(error) or NO_ANSWER
                status = 403 if is_forbidden(error) else 200
            else:
                values |= {PLAN: plan, "failed": plan.obstacle, "command": plan.fed(console.command(*plan.words))}
                values |= {"typed": self._typed(asked, plan), "needs_password": self.secret is not None}
        values |= {"title": self.title(asked), "path": self.path, "sheet": self.sheet}
        return framed(request, self.template, values, status)

    def _typed(self, asked: A, plan: Plan) -> str:
        return plan.loses or self.typed(asked)

    async def _posted(self, request: Request) -> Response:
        """A plan, where the form has none; else the change."""
        form = await form_of(request)
        asked = self._read(form)
        if PLAN not in form:
            is_own = tokens_of(request).is_own(request, form)
            return await self._planned(request, asked) if is_own else _refused(request, NOT_OWN, 403, self.path)
        console, told = console_of(request), _Told(request, self.path, form.get(PLAN, ""))
        if problem := _problem(request, console, form):
            told.refused(problem)
            return _refused(request, problem, 403 if problem == NOT_ALLOWED else 409, self._back(asked))
        return await sent_of(request).once(form[TOKEN], lambda: self._applied(request, console, asked, form, told))

    async def _applied(
        self, request: Request, console: Console, asked: A, form: Mapping[str, str], told: _Told
    ) -> tuple[Response, bool]:
        """The answer, and whether something may have been changed."""
        is_begun = False
        try:
            plan = await self.plan(console, asked)
            told.command = console.command(*plan.words)  # without the line that it reads: a record is its writer's
            if problem := plan.obstacle or self._another(asked, plan, form):
                told.refused(problem)
                return _refused(request, problem, 409, self._back(asked)), False
            is_begun = True
            if self.secret is not None:
                await self.secret(console, asked, form.get(SECRET, ""))
            else:
                await plan.carry_out()
        except (HeadraceError, OSError, TimeoutError) as error:
            told.failed(error)
            status = 403 if is_forbidden(error) else 409
            return _refused(request, str(error) or NO_ANSWER, status, self._back(asked)), is_begun and not _is_refusal(
                error
            )
        told.done()
        for feed in console.feeds:
            feed.want()
        await console.seen.renewed(CONSOLE_FIRST_MS)
        return RedirectResponse(self.after(asked), 303), True

    def _another(self, asked: A, plan: Plan, form: Mapping[str, str]) -> str:
        """Why this is not what its viewer has seen, and means; empty: it is."""
        if plan.digest != form.get(PLAN):
            return ANOTHER
        name = self._typed(asked, plan)
        if name and form.get(TYPED, "").strip() != name:
            return f"Data go with this: type the name '{name}' to confirm it."
        return ""

    def _back(self, asked: A) -> str:
        """The plan's page. A wish that is posted is not repeated in an address."""
        if self.verbatim:
            return self.path
        names: tuple[str, ...] = self.asked._fields  # type: ignore[attr-defined]
        texts: tuple[str, ...] = tuple(asked)  # type: ignore[arg-type]
        return f"{self.path}?{urlencode({name: text for name, text in zip(names, texts, strict=True) if text})}"


def _problem(request: Request, console: Console, form: Mapping[str, str]) -> str:
    """Why nothing may be changed by this request; empty where it may."""
    if not console.allows_changes:
        return NOT_ALLOWED
    return "" if tokens_of(request).is_own(request, form) else NOT_OWN


def _refused(request: Request, text: str, status: int, back: str) -> Response:
    part = rendered("parts/refused.html", {"text": text, "back": back})
    return framed(request, "page.html", {"title": "Refused", "part": part}, status)


def _is_refusal(error: Exception) -> bool:
    """Whether it says that nothing was changed."""
    return isinstance(error, (UsageError, RefusedError))


class _Told:
    """The line of the log about one wish."""

    def __init__(self, request: Request, path: str, digest: str) -> None:
        self.command = ""
        """Empty: no plan could be made."""
        self._facts = {
            "user": console_of(request).user or None,
            "address": request.client.host if request.client else None,
            "path": path,
            "plan": digest[:64],
        }

    def done(self) -> None:
        _LOG.info("a change by the console", **self._facts, command=self.command, outcome="done")

    def refused(self, reason: str) -> None:
        facts = {**self._facts, "command": self.command, "outcome": "refused", "reason": reason}
        _LOG.warning("a change by the console", **facts)

    def failed(self, error: Exception) -> None:
        outcome = "forbidden" if is_forbidden(error) else "failed"
        if isinstance(error, OutcomeUnknownError):
            outcome = "unknown"
        reason = str(error) or NO_ANSWER
        _LOG.warning("a change by the console", **self._facts, command=self.command, outcome=outcome, reason=reason)
