"""The console of `headrace up --console`, a process of its own. Pages take no time of a broker's event loop.

Promises: it prints `console URL` once the console serves. The console ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.cli.output import print_line
from headrace.cli.work.ready import OnceReady

_RUNNING: list[subprocess.Popen[str]] = []
"""Their standard inputs stay open as long as this process lives."""


def with_console(listen: str, client: Path | None, before: OnceReady | None) -> OnceReady:
    """Work that starts a console there, after other such work. `client`: the properties by which it reaches brokers
    that ask for a login; then viewers log in as well.
    """

    async def once_ready(addresses: Sequence[Address]) -> None:
        if before is not None:
            await before(addresses)
        print_line(f"console {await _started(listen, client, addresses)}")

    return once_ready


async def _started(listen: str, client: Path | None, addresses: Sequence[Address]) -> str:
    """The URL of a console that serves. Raises HeadraceError."""
    command = [sys.executable, "-m", "headrace.cli.main", "console", "--with-parent", "--listen", listen]
    command += ["--bootstrap", ",".join(map(str, addresses))]
    command += [] if client is None else ["--command-config", str(client), "--login"]
    word, _, url = (await asyncio.to_thread(_first_line, command)).strip().partition(" ")
    if word != "ready":
        raise HeadraceError(f"The console did not start at {listen}: its words stand above.")
    return url


def _first_line(command: Sequence[str]) -> str:
    """Start it, and wait for its first line; empty where it ends before."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    _RUNNING.append(process)
    assert process.stdout is not None
    return process.stdout.readline()
