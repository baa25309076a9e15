"""The work of `headrace up --nodes N`: one process for each broker, under this one.

Promises:
- It prints `broker ID pid PID listen HOST:PORT` for each broker as it starts it. Once all serve, and each of them knows
  that, it prints one line `ready HOST:PORT,...`.
- It restarts no broker. It reports when one ends, with the command that starts it again.
- SIGTERM or SIGINT stops the brokers one after the other, so that each can hand over its partitions. A second signal
  ends them at once.
- The brokers end with this process, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from headrace.base.addresses import parse_address
from headrace.base.errors import HeadraceError
from headrace.broker.home.nodes import Node, prepare
from headrace.broker.listeners import check_still_secured, read_listeners
from headrace.broker.system import system_random
from headrace.cli.output import note
from headrace.cli.work.ready import OnceReady
from headrace.storage.disk import LocalDisk

T = TypeVar("T")
START_SECONDS_MAX: Final = 120.0
TOLD_EVERY_S: Final = 10.0
"""How often it says for which brokers it waits."""
STOP_SECONDS_MAX: Final = 30.0


def supervise(
    *,
    data: Path,
    listen: str,
    count: int,
    configs: Mapping[str, str],
    options: Sequence[str],
    redis: str | None = None,
    once_ready: OnceReady | None = None,
) -> None:
    """Run until a signal. `options` are passed to every broker unchanged, and say `configs`. `redis`: the URL of the
    Redis that has the logs; None: the brokers' disk has them. `once_ready`: done before the last line is printed.
    Raises HeadraceError."""
    first = parse_address(listen)
    told = first._replace(host="localhost") if first.is_wildcard else first  # `prepare` refuses it in better words
    check_still_secured(data, read_listeners(configs, bound=first, advertised=told), configs)
    claim, nodes = prepare(LocalDisk(), data, first, count, system_random(), shared=redis is not None)
    try:
        asyncio.run(_Supervisor(nodes, options, redis, once_ready).run())
    finally:
        claim.release()


class _Supervisor:
    def __init__(
        self, nodes: Sequence[Node], options: Sequence[str], redis: str | None, once_ready: OnceReady | None
    ) -> None:
        self._once_ready = once_ready
        self._nodes = nodes
        self._redis = redis
        self._options = options
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = False
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._on_signal)
        try:
            if (ready := await self._start()) and await self._agreed():
                print("ready " + ",".join(ready), flush=True)
                await self._watch()
        finally:
            failed = await self._stop()
        if failed and self._asked.is_set():
            raise HeadraceError(f"Broker {failed[0]} did not stop cleanly: see its log above.")

    def _on_signal(self) -> None:
        (self._hurried if self._asked.is_set() else self._asked).set()

    async def _start(self) -> list[str]:
        for node in self._nodes:
            process = self._running[node.id] = await self._spawn(node)
            print(f"broker {node.id} pid {process.pid} listen {node.listen}", flush=True)
        ready = await self._unless_asked(self._ready(node) for node in self._nodes)
        if ready and self._once_ready is not None and not self._asked.is_set():
            await self._once_ready([parse_address(each) for each in ready])
        return ready

    async def _agreed(self) -> bool:
        """Wait until each broker knows what any of them knows by now: that all serve, and what `once_ready` changed.
        Returns False where a stop was requested meanwhile."""
        at = await self._unless_asked(self._reached(node, 0) for node in self._nodes)
        return bool(at and await self._unless_asked(self._reached(node, max(at)) for node in self._nodes))

    async def _unless_asked(self, works: Iterable[Coroutine[None, None, T]]) -> list[T]:
        """Return what all of them return; nothing where a stop was requested."""
        waiting = [asyncio.ensure_future(each) for each in works]
        asked = asyncio.ensure_future(self._asked.wait())
        gathered = asyncio.gather(*waiting)
        seconds = 0.0
        try:
            while not (gathered.done() or asked.done()):
                await asyncio.wait((gathered, asked), timeout=TOLD_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                if gathered.done() or asked.done():
                    break
                seconds += TOLD_EVERY_S
                late = self._late(waiting)
                if seconds >= START_SECONDS_MAX:
                    raise HeadraceError(f"{late} did not become ready in {START_SECONDS_MAX:g} s: see the logs above.")
                note(f"waits until {late} serves and knows of the others, for {seconds:g} s; its log says what for")
            return gathered.result() if gathered.done() else []
        finally:
            asked.cancel()
            for each in waiting:
                each.cancel()
            await asyncio.gather(asked, gathered, *waiting, return_exceptions=True)

    def _late(self, waiting: Sequence[asyncio.Future[T]]) -> str:
        """The brokers of which these are awaited still. The order is that of the nodes."""
        late = [str(node.id) for node, each in zip(self._nodes, waiting, strict=True) if not each.done()]
        return f"broker {', '.join(late)}"

    def _command(self, node: Node) -> list[str]:
        """The words behind `headrace` that run the broker."""
        words = ["broker", "--id", str(node.id), "--data", str(node.data), "--listen", str(node.listen)]
        others = ",".join(str(other.listen) for other in self._nodes if other is not node)
        if self._redis is not None:
            words += ["--engine", "redis"]
        elif others:
            words += ["--join", others]
        return [*words, *self._options]

    async def _spawn(self, node: Node) -> asyncio.subprocess.Process:
        environment = dict(os.environ)
        if self._redis is not None:  # its password is not for the list of processes
            environment["HEADRACE_REDIS"] = self._redis
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli.main"),
            *self._command(node),
            "--with-parent",
            env=environment,
            stdin=asyncio.subprocess.PIPE,  # when this process ends it ends, and so does the broker
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # keys pressed at the terminal are for this process alone
        )

    async def _ready(self, node: Node) -> str:
        word, address = await self._said(node)
        if word != "ready":
            code = await self._running[node.id].wait()
            raise HeadraceError(f"Broker {node.id} did not start (exit code {code}): see its log above.")
        return address

    async def _reached(self, node: Node, index: int) -> int:
        """Wait until that broker has replayed the metadata up to there. Returns how far it is by then."""
        stdin = self._running[node.id].stdin
        assert stdin is not None
        stdin.write(b"%d\n" % index)
        word, at = await self._said(node)
        if word != "at":
            code = await self._running[node.id].wait()
            raise HeadraceError(f"Broker {node.id} ended (exit code {code}): see its log above.")
        return int(at)

    async def _said(self, node: Node) -> tuple[str, str]:
        """Return the first word of its next line, and the rest. Both are empty where it ends."""
        stdout = self._running[node.id].stdout
        assert stdout is not None
        word, _, rest = (await stdout.readline()).decode().strip().partition(" ")
        return word, rest

    async def _watch(self) -> None:
        """Wait for a signal, or for the end of the last broker."""
        waiting = {asyncio.ensure_future(self._end_of(node)) for node in self._nodes}
        asked = asyncio.ensure_future(self._asked.wait())
        while waiting and not asked.done():
            _, left = await asyncio.wait({asked, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting &= left
        for each in (asked, *waiting):
            each.cancel()
        if not self._asked.is_set():
            raise HeadraceError("All brokers have ended: see their logs above.")

    async def _end_of(self, node: Node) -> None:
        process = self._running[node.id]
        code = await process.wait()
        with_url = "with HEADRACE_REDIS set to its URL, " if self._redis is not None else ""
        again = shlex.join(["headrace", *self._command(node)])
        note(
            f"broker {node.id} (pid {process.pid}) ended with exit code {code}; the others go on; {with_url}start it "
            f"again with: {again}"
        )

    async def _stop(self) -> list[int]:
        """Stop the brokers one after the other, and at once after a second signal. Returns those that did not end
        well.
        """
        failed = []
        for node_id, process in self._running.items():
            was_over = process.returncode is not None
            if not was_over:
                process.terminate()
                await self._ended(process)
            if not was_over and process.returncode not in (
                0,
                -signal.SIGTERM,
            ):  # the signal ends one that had not begun
                failed.append(node_id)
        return failed

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        end, hurry = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait((end, hurry), timeout=STOP_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not end.done():
            process.kill()
        await end
