"""A console in the test's own process, asked as a browser would, without a socket."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.cookies import SimpleCookie
from typing import Any, ClassVar
from urllib.parse import urlencode

from starlette.applications import Starlette

from headrace.console.application import application
from headrace.console.feeds import Feed
from headrace.console.sessions import Everybody
from headrace.console.state import PATIENCE, Console, Settings
from headrace.net.client.cluster import Cluster
from headrace.operations.masking import Masks

HOST = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def text(self) -> str:
        """Its text, as a person reads it."""
        bare = re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|title)\b.*?</\1>", " ", self.body, flags=re.DOTALL))
        return re.sub(r"\s+", " ", html.unescape(bare))

    @property
    def rows(self) -> list[list[str]]:
        """The cells of all rows of its tables, without those of headings."""
        bodies = re.findall(r"<tr[^>]*>(.*?)</tr>", self.body, flags=re.DOTALL)
        found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in bodies if "<td" in row]
        return [[Answer(0, {}, cell).text.strip() for cell in row] for row in found]


@dataclass(slots=True)
class Browser:
    """One browser, with its cookies."""

    app: Starlette
    address: ClassVar[str] = "127.0.0.1"
    cookies: dict[str, str] = field(default_factory=dict, kw_only=True)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, b"", headers)

    async def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        headers = {"content-type": "application/x-www-form-urlencoded", **headers}
        return await self._ask("POST", path, urlencode(form).encode(), headers)

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        messages: list[Any] = []

        async def send(message: Any) -> None:
            messages.append(message)

        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if asked:
                return asked.pop()
            return await asyncio.Event().wait()

        await self.app(self._scope(method, path, headers), receive, send)
        begun = messages[0]
        told = {name.decode(): value.decode() for name, value in begun["headers"]}
        for header in (value.decode() for name, value in begun["headers"] if name == b"set-cookie"):
            for name, value in SimpleCookie(header).items():
                self.cookies[name] = value.value
                if value["max-age"] == "0":
                    del self.cookies[name]
        whole = b"".join(message.get("body", b"") for message in messages[1:])
        return Answer(begun["status"], told, whole.decode(errors="replace"))

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[asyncio.Queue[str]]:
        """The events of a stream, each as its data."""
        events: asyncio.Queue[str] = asyncio.Queue()
        left = ""

        async def send(message: Any) -> None:
            nonlocal left
            left += message.get("body", b"").decode()
            *whole, left = left.split("\n\n")
            for each in whole:
                lines = [line.removeprefix("data: ") for line in each.split("\n") if line.startswith("data: ")]
                if lines:
                    events.put_nowait("\n".join(lines))

        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(self.app(self._scope("GET", path, {}), receive, send))
        try:
            yield events
        finally:
            gone.set()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _scope(self, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        bare, _, query = path.partition("?")
        told = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.cookies:
            told["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": bare,
            "raw_path": bare.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in told.items()],
            "client": (self.address, 50_000),
            "server": ("127.0.0.1", 8080),
        }

    async def form(self, path: str, button: str = "") -> dict[str, str]:
        """The hidden fields of a page's form that posts there, the page's only one by default."""
        return hidden_of(await self.get(path), button)

    async def log_in(self, user: str, password: str, next_: str = "", **headers: str) -> Answer:
        form = await self.form("/login")
        return await self.post("/login", {**form, "user": user, "password": password, "next": next_}, **headers)


@dataclass(slots=True)
class Viewer(Browser):
    """One browser of a console that asks nobody who it is."""

    console: Console


def hidden_of(found: Answer, button: str = "") -> dict[str, str]:
    """The hidden fields of the form that posts, and has this text in it."""
    forms = re.findall(r'<form[^>]*method="post"[^>]*>.*?</form>', found.body, flags=re.DOTALL)
    wanted = [each for each in forms if button in each and 'action="/logout"' not in each]
    assert wanted, found.text
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', wanted[-1])
    return {name: html.unescape(value) for name, value in fields}


async def fresh(feed: Feed[Any]) -> None:
    """Wait until it was asked again."""
    changed = feed.changed()
    feed.want()
    await changed.wait()


@asynccontextmanager
async def console_of(bootstrap: str, *, masks: Masks | None = None, **more: Any) -> AsyncIterator[Viewer]:
    """A console of this cluster, and one who views it."""
    reach = partial(Cluster, bootstrap)
    settings = Settings(masks=masks or Masks(), **more)
    async with reach(backoff=PATIENCE) as cluster:
        console = Console(reach, cluster, settings)
        app = application(Everybody(console), ["127.0.0.1"])
        async with app.router.lifespan_context(app):
            yield Viewer(app, console)
