"""A broker in a thread with an event loop of its own, so that a test may block while it is served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from headrace.testing.running import RunningBroker, broker

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0


class BrokerThread:
    """A broker from `start` to `stop`; also a context manager, which gives the RunningBroker."""

    def __init__(self, *, configs: Mapping[str, str] | None = None, data: Path | None = None, port: int = 0) -> None:
        """As for `headrace.testing.broker`."""
        self._configs = configs
        self._data = data
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def __enter__(self) -> RunningBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> RunningBroker:
        """Start and wait until it serves. Raises HeadraceError where it cannot."""
        assert self._thread is None, "it was started already"
        ready: Future[RunningBroker] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace-broker", daemon=True)
        self._thread.start()
        try:
            return ready.result(START_SECONDS_MAX)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it cleanly and wait until it has. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._over is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
        thread.join(STOP_SECONDS_MAX)
        assert not thread.is_alive(), "the broker did not stop"

    def _run(self, ready: Future[RunningBroker]) -> None:
        from headrace.net.loops import run

        try:
            run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[RunningBroker]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with broker(configs=self._configs, data=self._data, port=self._port) as running:
            ready.set_result(running)
            await self._over.wait()
