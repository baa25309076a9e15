"""Moves of partitions: how far each is, what holds it up, and the plan of a new one."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import CONSOLE_FIRST_MS
from headrace.base.reading import INT_MAX, natural
from headrace.console.guarding import form_of
from headrace.console.page import Page, console_of, framed
from headrace.console.pages.resetting import refusal
from headrace.console.rendering import rendered
from headrace.console.state import Console
from headrace.net.client.moves import measured, move
from headrace.wire.moves import MOVE, AskedView, MoveRequest

PHASES: Final = (
    ("pre-copy", "Export", "its closed segments go to the store while it serves"),
    ("waiting for the target", "Proof", "the target reads the store"),
    ("seal", "Seal", "writes wait; the tail is exported"),
    ("recover", "Begin", "the target leads, and begins its log"),
)
"""Phases as brokers name them, in words for people, and what happens in each."""
FINISHED_MAX: Final = 50
_LOG: Final = structlog.get_logger(__name__)


async def values(console: Console, _: Request) -> dict[str, Any]:
    found = console.moves.value
    assert found is not None, "no part is made without it"
    names = [name for name, *_ in PHASES]
    return {
        "moves": found.under_way,
        "steps": {one.phase: names.index(one.phase) if one.phase in names else 0 for one in found.under_way},
        "phases": PHASES,
        "finished": list(reversed(found.finished))[:FINISHED_MAX],
    }


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str
    partitions: str
    """Numbers with commas; empty: all."""
    to: str
    """A broker's id; empty: the controller chooses."""

    def request(self, *, dry_run: bool) -> MoveRequest:
        """Raises UsageError."""
        try:
            chosen = tuple(natural(each.strip(), INT_MAX) for each in self.partitions.split(",") if each.strip())
            target = natural(self.to.strip(), INT_MAX) if self.to.strip() else None
        except ValueError:
            raise UsageError("Partitions are numbers with commas, and a broker is the number of one.") from None
        if not self.topic.strip():
            raise UsageError("Name the topic whose partitions are to move.")
        return MoveRequest(MOVE, self.topic.strip(), chosen, None, target, -1, dry_run)

    def words(self, *, dry_run: bool) -> list[str]:
        """The command that does the same."""
        words = ["topic", "move" if self.to.strip() else "unload", self.topic.strip()]
        words += ["--to", self.to.strip()] if self.to.strip() else []
        for each in self.partitions.split(","):
            words += ["--partition", each.strip()] if each.strip() else []
        return [*words, "--dry-run" if dry_run else "--wait"]


class Planned(NamedTuple):
    """One partition of a plan."""

    asked: AskedView
    bytes: int | None
    """Bytes that are still to be exported; None: they are copied, or not told."""


def _digest(asked: Asked, found: list[Planned]) -> str:
    """Changes with who moves where, not with the bytes that are left."""
    return hashlib.sha256(repr((asked, [each.asked for each in found])).encode()).hexdigest()[:32]


async def planned(console: Console, asked: Asked) -> list[Planned]:
    """The partitions that would move, and the way of each. Raises UsageError, ClientError."""
    answer = await move(console.cluster, asked.request(dry_run=True))
    sizes = await measured(console.cluster, asked.topic.strip(), ())
    return [Planned(one, sizes.get(one.partition) if one.is_handed_over else None) for one in answer.asked]


def _asked(settings: Any) -> Asked:
    return Asked(*(settings.get(name, "") for name in Asked._fields))


async def _form(request: Request) -> Response:
    """The form, and under it the plan where one is asked for. It changes nothing."""
    console, asked = console_of(request), _asked(request.query_params)
    await console.seen.settled(CONSOLE_FIRST_MS)
    seen = console.seen.value
    brokers = [] if seen is None else [each for each in seen.look.brokers if not each.fenced]
    values: dict[str, Any] = {"asked": asked, "brokers": brokers, "plan": None, "failed": ""}
    if asked.topic:
        try:
            found = await planned(console, asked)
        except (HeadraceError, OSError, TimeoutError) as error:
            values["failed"] = str(error) or "No answer came in time."
        else:
            going = [each for each in found if not each.asked.refusal]
            values |= {"plan": found, "going": going, "digest": _digest(asked, found)}
            values["command"] = console.command(*asked.words(dry_run=False))
    return framed(request, "move.html", {"title": "Move partitions", **values})


async def _apply(request: Request) -> Response:
    """The change."""
    console, form = console_of(request), await form_of(request)
    asked = _asked(form)
    refused = refusal(request, console, form)
    if not refused:
        try:
            found = await planned(console, asked)
            if _digest(asked, found) != form.get("plan"):
                refused = "The plan is another one by now: look at the new plan, and apply that."
            else:
                await move(console.cluster, asked.request(dry_run=False))
        except (HeadraceError, OSError, TimeoutError) as error:
            refused = str(error) or "No answer came in time."
    _LOG.info(
        "the console refused to move partitions" if refused else "partitions moved by the console",
        command=console.command(*asked.words(dry_run=False)),
        client=request.client.host if request.client else None,
        **({"reason": refused} if refused else {}),
    )
    if refused:
        part = rendered("parts/failed.html", {"text": refused})
        return framed(request, "page.html", {"title": "Refused", "part": part}, 409 if console.allows_changes else 403)
    console.moves.want()
    return RedirectResponse("/moves", 303)


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.moves,)


PAGE: Final = Page(
    path="/moves",
    template="parts/moves.html",
    title=lambda _: "Moves",
    feeds=feeds,
    values=values,
    frame="moves.html",
)
ROUTES: Final = (Route("/move", _form, methods=["GET"]), Route("/move", _apply, methods=["POST"]))
