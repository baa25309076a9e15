"""The console of `headrace up --console`, a process of its own. Pages take no time of a broker's event loop.

Promises: it prints `console URL` once the console serves. The console ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.cli.output import print_line
from headrace.cli.work.ready import OnceReady

_RUNNING: list[subprocess.Popen[str]] = []
"""Their standard inputs stay open as long as this process lives."""


def with_console(
    listen: str, words: Sequence[str], environment: Mapping[str, str], client: Path | None, before: OnceReady | None
) -> OnceReady:
    """Work that starts a console there, after other such work. `words`, `environment`: more of its options. `client`:
    the properties by which it reaches brokers that ask for a login; then viewers log in as well.
    """

    async def once_ready(addresses: Sequence[Address]) -> None:
        if before is not None:
            await before(addresses)
        named = ["--listen", listen, "--bootstrap", ",".join(map(str, addresses)), *words]
        named += [] if client is None else ["--command-config", str(client), "--login"]
        print_line(f"console {await _started(listen, named, environment)}")

    return once_ready


async def _started(listen: str, named: Sequence[str], environment: Mapping[str, str]) -> str:
    """The URL of a console that serves. Raises HeadraceError."""
    command = [sys.executable, "-m", "headrace.cli.main", "console", "--with-parent", *named]
    line = await asyncio.to_thread(_first_line, command, {**os.environ, **environment})
    word, _, url = line.strip().partition(" ")
    if word != "ready":
        raise HeadraceError(f"The console did not start at {listen}: its words stand above.")
    return url


def _first_line(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Start it, and wait for its first line; empty where it ends before."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    _RUNNING.append(process)
    assert process.stdout is not None
    return process.stdout.readline()
