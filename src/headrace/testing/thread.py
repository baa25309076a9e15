"""Brokers in a thread with an event loop of its own, so that a test may block while it is served."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from headrace.base.errors import HeadraceError
from headrace.testing.clients import Clients
from headrace.testing.clocks import MovableClock
from headrace.testing.faults import Faults
from headrace.testing.running import RunningBroker, RunningCluster, broker, cluster

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0

R = TypeVar("R")


class _InThread(Generic[R]):
    """Runs a context manager in a thread, from `start` to `stop`. It is a context manager itself."""

    def __init__(self, serve: Callable[[], AbstractAsyncContextManager[R]], clock: MovableClock | None = None) -> None:
        """`clock`: the loop's time; None: the machine's."""
        self._serve = serve
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._main: asyncio.Task[Any] | None = None
        self._serves = False
        """Its start is over. Before that, a stop cancels it."""

    def __enter__(self) -> R:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> R:
        """Start and wait until it serves. Returns what the context yields. Raises HeadraceError where it cannot
        start.
        """
        assert self._thread is None, "it was started already"
        ready: Future[R] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="headrace-broker", daemon=True)
        self._thread.start()
        try:
            return ready.result(START_SECONDS_MAX)
        except TimeoutError:
            waits = self._waits_in()
            self.stop()
            raise HeadraceError(f"It did not serve within {START_SECONDS_MAX:.0f} s. It waits in {waits}.") from None
        except BaseException:
            self.stop()
            raise

    def _waits_in(self) -> str:
        """Return where its start stands, as places in Headrace's own code."""
        if self._main is None:
            return "the import of the broker, or for a thread"
        places = [
            f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"
            for frame in _suspended(self._main.get_coro())
            if "headrace" in frame.f_code.co_filename
        ]
        return ", which waits in ".join(places[-3:]) or "the event loop"

    def stop(self) -> None:
        """Stop it cleanly and wait until it has stopped. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._over is not None and self._main is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set if self._serves else self._main.cancel)
        thread.join(STOP_SECONDS_MAX)
        assert not thread.is_alive(), "the broker did not stop"

    def ask(self, work: Coroutine[Any, Any, None], seconds_max: float) -> None:
        """Run the work in that thread, and wait for it."""
        assert self._loop is not None, "it was started"
        asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            asked.result(seconds_max)
        finally:
            asked.cancel()

    def _run(self, ready: Future[R]) -> None:
        from headrace.net.loops import loop_factory

        try:
            factory = loop_factory() if self._clock is None else self._clock.new_loop
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._served(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _served(self, ready: Future[R]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._main = asyncio.current_task()
        async with self._serve() as running:
            self._serves = True
            ready.set_result(running)
            await self._over.wait()


class BrokerThread(_InThread[RunningBroker]):
    """A broker from `start` to `stop`. As a context manager it gives the RunningBroker."""

    def __init__(
        self,
        *,
        configs: Mapping[str, str] | None = None,
        data: Path | None = None,
        port: int = 0,
        secure: bool = False,
        clock: MovableClock | None = None,
    ) -> None:
        """Takes the arguments of `headrace.testing.broker`. Timers come due by the `clock`, too."""
        super().__init__(lambda: broker(configs=configs, data=data, port=port, secure=secure, clock=clock), clock)


class ClusterThread:
    """Brokers that are one cluster, from `start` to `stop`. As a context manager it gives itself."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        configs: Mapping[str, str] | None = None,
        data: Path | None = None,
        secure: bool = False,
    ) -> None:
        """Takes the arguments of `headrace.testing.cluster`."""
        self._thread = _InThread(lambda: cluster(brokers, configs=configs, data=data, secure=secure))
        self._cluster: RunningCluster | None = None

    def __enter__(self) -> ClusterThread:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT,HOST:PORT,...` of all brokers, even stopped ones: clients try one after the other."""
        return self._made.bootstrap

    @property
    def clients(self) -> Clients:
        """As `RunningBroker.clients`."""
        return self._made.clients

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the running brokers."""
        return self._made.running

    def faults(self, broker: int) -> Faults:
        """As `RunningCluster.faults`."""
        return self._made.faults(broker)

    def start(self) -> None:
        """Start all and wait until they serve. Raises HeadraceError where one cannot start."""
        self._cluster = self._thread.start()

    def stop(self) -> None:
        """Stop all cleanly and wait until they have stopped. Idempotent."""
        self._thread.stop()

    def start_brokers(self, *brokers: int) -> None:
        """As `RunningCluster.start`."""
        self._thread.ask(self._made.start(*brokers), START_SECONDS_MAX)

    def stop_brokers(self, *brokers: int) -> None:
        """As `RunningCluster.stop`."""
        self._thread.ask(self._made.stop(*brokers), STOP_SECONDS_MAX)

    @property
    def _made(self) -> RunningCluster:
        assert self._cluster is not None, "it was started"
        return self._cluster


def _suspended(waiting: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine, from the outermost on. A step of an asynchronous generator names its
    generator to the garbage collector alone."""
    while waiting is not None:
        if type(waiting).__name__ == "async_generator_asend":
            waiting = next((each for each in gc.get_referents(waiting) if inspect.isasyncgen(each)), None)
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            yield frame
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
