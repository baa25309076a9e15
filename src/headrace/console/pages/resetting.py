"""New offsets for a group: first the plan and its command, then the change.

Promises: a plan changes nothing. A change is carried out only where the plan, made again, is the one that was seen.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final, NamedTuple

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.reading import LONG_MAX, natural, whole
from headrace.console.guarding import form_of
from headrace.console.page import console_of, framed, tokens_of
from headrace.console.rendering import rendered
from headrace.console.state import Console
from headrace.net.client.groups import Groups, GroupView, TopicPartition
from headrace.operations.groups import check_inactive, chosen
from headrace.operations.resetting import Reset, Target, parse_datetime, parse_duration, parse_topics, plan

TARGETS: Final = (
    ("earliest", "the first record that is there", ""),
    ("latest", "the end", ""),
    ("offset", "an offset", "42"),
    ("shift", "so many records on (back: a minus)", "-10"),
    ("datetime", "a time (UTC)", "2026-01-31T12:00:00Z"),
    ("duration", "so long ago", "PT1H"),
)
"""Kinds of targets, in words, and an example of a value."""
_LOG: Final = structlog.get_logger(__name__)


class Asked(NamedTuple):
    """A wish, as the form has it."""

    group: str
    topics: str
    """TOPIC or TOPIC:0,1, with blanks between several; empty: all that it has committed."""
    to: str
    value: str

    def target(self) -> Target:
        """Raises UsageError."""
        value = self.value.strip()
        try:
            match self.to:
                case "earliest":
                    return Target(earliest=True)
                case "latest":
                    return Target(latest=True)
                case "offset":
                    return Target(offset=natural(value, LONG_MAX))
                case "shift":
                    return Target(shift=whole(value))
                case "datetime":
                    return Target(timestamp_ms=parse_datetime(value))
                case "duration":
                    return Target(timestamp_ms=parse_duration(value, time.time_ns() // 1_000_000))
        except ValueError:
            raise UsageError(f"'{value}' is no {self.to}: write a whole number.") from None
        raise UsageError("Say where the group is to read on.")

    def words(self) -> list[str]:
        """The command that does the same."""
        words = ["group", "reset-offsets", self.group]
        for topic in self.topics.split():
            words += ["--topic", topic]
        words += [] if self.topics.split() else ["--all-topics"]
        option = {
            "earliest": "--to-earliest",
            "latest": "--to-latest",
            "shift": "--shift-by",
            "duration": "--by-duration",
        }
        words.append(option.get(self.to, f"--to-{self.to}"))
        return [*words, *([self.value.strip()] if self.to not in ("earliest", "latest") else []), "--execute"]


class Plan(NamedTuple):
    """The effect that a reset would have now."""

    view: GroupView
    resets: list[Reset]

    @property
    def digest(self) -> str:
        """Changes with anything that the plan says."""
        return hashlib.sha256(repr((self.view.name, self.resets)).encode()).hexdigest()[:32]


async def planned(console: Console, asked: Asked) -> Plan:
    """Raises UsageError, ClientError."""
    groups = Groups(console.cluster)
    target, topics = asked.target(), parse_topics(asked.topics.split())
    view = await groups.describe(asked.group)
    committed = await groups.committed(asked.group)
    partitions = await chosen(console.cluster, topics, committed, target)
    return Plan(view, await plan(console.cluster, target, partitions, committed))


def _asked(settings: Any) -> Asked:
    return Asked(*(settings.get(name, "") for name in ("group", "topics", "to", "value")))


async def _form(request: Request) -> Response:
    """The form, and under it the plan where one is asked for. It changes nothing."""
    console, asked = console_of(request), _asked(request.query_params)
    values: dict[str, Any] = {"asked": asked, "targets": TARGETS, "plan": None, "failed": "", "is_active": False}
    if asked.to:
        try:
            found = await planned(console, asked)
        except (HeadraceError, OSError, TimeoutError) as error:
            values["failed"] = str(error) or "No answer came in time."
        else:
            values["plan"] = found
            values["command"] = console.command(*asked.words())
            try:
                check_inactive(found.view)
            except HeadraceError as error:
                values |= {"is_active": True, "failed": str(error)}
    return framed(request, "reset.html", {"title": f"Reset {asked.group}", **values})


async def _apply(request: Request) -> Response:
    """The change."""
    console, form = console_of(request), await form_of(request)
    asked = _asked(form)
    refused = refusal(request, console, form)
    if not refused:
        try:
            found = await planned(console, asked)
            check_inactive(found.view)
            if found.digest != form.get("plan"):
                refused = "The plan is another one by now: offsets have moved. Look at the new plan, and apply that."
            else:
                await Groups(console.cluster).commit(
                    asked.group, {TopicPartition(one.topic, one.partition): one.new for one in found.resets}
                )
        except (HeadraceError, OSError, TimeoutError) as error:
            refused = str(error) or "No answer came in time."
    _LOG.info(
        "offsets of a group reset by the console" if not refused else "the console refused to reset offsets",
        group=asked.group,
        command=console.command(*asked.words()),
        client=request.client.host if request.client else None,
        **({"reason": refused} if refused else {}),
    )
    if refused:
        part = rendered("parts/failed.html", {"text": refused})
        return framed(request, "page.html", {"title": "Refused", "part": part}, 409 if console.allows_changes else 403)
    console.seen.want()
    return RedirectResponse(request.url_for("group", name=asked.group).path, 303)


def refusal(request: Request, console: Console, form: dict[str, str]) -> str:
    """Why nothing may be changed by this request; empty where it may."""
    if not console.allows_changes:
        return (
            "This console is read-only: it changes things where it is started with 'headrace console --allow-changes'."
        )
    if not tokens_of(request).is_own(request, form):
        return "This form is not of this console, or it is too old: open the page again."
    return ""


ROUTES: Final = (
    Route("/group-reset", _form, methods=["GET"]),
    Route("/group-reset", _apply, methods=["POST"]),
)
