"""Reads that the quorum confirms: those of one turn of the loop share one question to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.raft.events import ReadAnswer


class Reading:
    """`ask` puts a numbered question to the core; it returns False where that is refused."""

    def __init__(self, ask: Callable[[int], bool], refused: Callable[[], Exception]) -> None:
        self._ask = ask
        self._refused = refused
        self._next: asyncio.Future[int] | None = None
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._number = 0

    async def confirmed(self) -> int:
        """Return the index up to which the log must be applied for a read that sees everything committed before now."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_soon(self._send)
        return await asyncio.shield(self._next)

    def _send(self) -> None:
        question, self._next = self._next, None
        if question is None:
            return
        self._number += 1
        self._asked[self._number] = question
        if not self._ask(self._number):
            self._fail(self._asked.pop(self._number), self._refused())

    def on_answer(self, answer: ReadAnswer) -> None:
        question = self._asked.pop(answer.context, None)
        if question is None or question.done():
            return
        if answer.index is None:
            self._fail(question, self._refused())
        else:
            question.set_result(answer.index)

    def drop(self, error: Callable[[], Exception]) -> None:
        """Give every waiting caller the error: nobody will answer any more."""
        for question in self._asked.values():
            self._fail(question, error())
        self._asked.clear()
        if self._next is not None:
            self._fail(self._next, error())
            self._next = None

    def _fail(self, question: asyncio.Future[int], error: Exception) -> None:
        if not question.done():
            question.set_exception(error)
            question.exception()  # not every asker is still there to look
