"""Forms that were sent, so that each changes something once: a second click, or a browser that asks again, gets the
answer of the first.

Promises: a form is known by its token, which is of one page and one session. A form that changed nothing may be sent
again. There are boundedly many; the oldest are forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.base.limits import CONSOLE_SENT_FORMS_MAX

Work: TypeAlias = Callable[[], Awaitable[tuple[Response, bool]]]
"""The answer, and whether something may have been changed."""


class Sent:
    """See the module."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, asyncio.Future[Response]] = OrderedDict()

    async def once(self, token: str, work: Work) -> Response:
        """The answer for this form, by `work` where it is the first time."""
        if (before := self._answers.get(token)) is not None:
            await asyncio.wait([before])
            if before.cancelled():
                text = "This form was sent before, and its outcome is not known: look at the effect.\n"
                return PlainTextResponse(text, 409)
            return before.result()
        answer = self._answers[token] = asyncio.get_running_loop().create_future()
        while len(self._answers) > CONSOLE_SENT_FORMS_MAX:
            self._answers.popitem(last=False)
        try:
            response, is_changed = await work()
            answer.set_result(response)
        finally:
            if not answer.done():
                answer.cancel()
        if not is_changed:
            self._answers.pop(token, None)
        return response


def sent_of(request: Request) -> Sent:
    sent: Sent = request.app.state.sent
    return sent
