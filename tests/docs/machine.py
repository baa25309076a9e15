"""A user's machine in a temporary directory: pages' blocks are typed there, one after the other.

- `127.0.0.1` is an address of loopback for this machine alone, and its ports are free ones. Names such as
  `kafka.example.org` are other such addresses. Directories such as `/srv` lie in the temporary directory, and so do the
  buckets of `s3://`.
- `headrace up`, `headrace broker --id`, `headrace console` and `headrace mcp --listen` go on in the background once
  they say `ready`, as in another terminal. A broker that starts at the address of an earlier one stops that one first.
- `make` says what it would do, so that a target has to be there.
- Ctrl-C is pressed once a consumer without an end has its first record.
- Nothing else differs from what a user types: shells run with `bash -e`, each program is a process of its own. In the
  short tier those of `headrace` are forked from one that has imported everything (tools/warm.py).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Final, Self

from headrace.broker.home.ports import PORTS
from tests.docs.pages import PYTHON, ROOT, SHELL, Block
from tools import kafka_jars, warm

PORTS_OF_PAGES: Final = range(9092, 9100)
METRICS_PORT: Final = 9404
BLOCK_S: Final = 300.0
HOSTS: Final = ("0.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "kafka.example.org")
"""Hosts of pages that are addresses of this machine, too; all at once is the first of them."""
ROOTS: Final = ("/var/tmp", "/var/lib", "/etc/headrace", "/srv", "/lake", "/replays", "/backup", "/data")
SHIM: Final = """\
#!/bin/bash
# `headrace`, as on the PATH of a user. A broker or console goes on in the background once it is ready.
set -e
case "$1 $2" in
    "up "*) [[ "$*" == *--listen* || "$*" == *listeners=* ]] || set -- "$@" --listen {address} ;;
    "broker --id" | "console "* | "mcp --listen") ;;
    "consume "*)
        [[ "$* " =~ " "(--end|--tail|--to|-n)" " ]] && exec {command} "$@"
        # Without an end it goes on until Ctrl-C, which comes once its first record is there.
        exec 3< <(exec env --default-signal=INT {python} -m headrace.cli.main "$@")
        consumer=$!
        read -r -u 3 line
        echo "$line"
        kill -INT $consumer
        wait $consumer || [ $? = 130 ]
        exit 0
        ;;
    *) exec {command} "$@" ;;
esac
at=$(grep -oE -- '--listen [^ ]+' <<<"$*" | cut -d' ' -f2)
at=${{at:-listeners}}
data=$(grep -oE -- '--data [^ ]+' <<<"$*" | cut -d' ' -f2)
cd {place}/brokers
for earlier in *.pid; do
    [ "$earlier" = "$at.pid" ] || grep -qsx "$data" "${{earlier%.pid}}.data" || continue
    [ -e "$earlier" ] || continue
    if kill "$(cat "$earlier")" 2>/dev/null; then tail -s 0.05 --pid="$(cat "$earlier")" -f /dev/null; fi
    rm "${{earlier%.pid}}".*
done
mkfifo "$at.fifo"
echo "$data" >"$at.data"
cd - >/dev/null
log={place}/brokers/$at
# The broker holds both ends, so that it may write when nobody reads any more.
{apart} "$@" </dev/null 1<>"$log.fifo" 2>"$log.log" {behind}
while read -r line; do
    echo "$line" | tee -a "$log.out"
    case "$line" in ready*) exit 0 ;; esac
done <"$log.fifo"
cat "$log.log" >&2
exit 1
"""
COLD: Final = {
    "command": "{python} -m headrace.cli.main",
    "apart": "setsid {python} -m headrace.cli.main",
    "behind": '& echo $! >"$log.pid"',
}
"""Of the shim, where each command is an interpreter of its own."""
WARM: Final = {
    "command": "{python} -I -S {forked} {door}",
    "apart": '{python} -I -S {forked} {door} --apart "$log.pid"',
    "behind": "",
}
"""Of the shim, where commands are forked."""
MAKE: Final = """\
#!/bin/sh
exec /usr/bin/make --dry-run --directory {root} "$@" >/dev/null
"""


class Machine:
    """One page's. Ends all that it started, however the page ends."""

    def __init__(self, place: Path) -> None:
        self.place: Final = place
        self.home: Final = place / "home"
        """Where the blocks run."""
        self._random = SystemRandom()
        self.host: Final = self._new_host()
        self._hosts: Final = {name: self._new_host() for name in HOSTS}
        self._base = self._free_base()
        self.names: Final[dict[str, str]] = {}
        """More texts of pages and what stands here in their place, such as a server's address."""
        self.environment: dict[str, str] = {}
        self.until_the_end: Final = ExitStack()
        """Ends servers that this machine is given."""
        self._door: Final = warm.Door(place / "door")
        if warm.is_on():
            self.until_the_end.enter_context(self._door)
        self._made()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.until_the_end.close()
        for file in (self.place / "brokers").glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.killpg(int(file.read_text()), signal.SIGKILL)

    @property
    def bootstrap(self) -> str:
        return self.translated("127.0.0.1:9092")

    @property
    def store(self) -> str:
        """URL of the store of the pages' brokers."""
        return f"file://{self.place}/srv/store"

    def translated(self, text: str) -> str:
        """The text with this machine's addresses and directories."""
        for name, here in self.names.items():
            text = text.replace(name, here)
        text = re.sub(r"(?:s3://bucket/durable|file:///srv/store)", self.store, text)
        for name in ROOTS:
            text = re.sub(rf"(?:(?<=file://)|(?<![\w/.])){name}\b", f"{self.place}{name}", text)
        for name, host in {"127.0.0.1": self.host, **self._hosts}.items():
            text = text.replace(name, host)
        numbered = {METRICS_PORT: len(PORTS_OF_PAGES), **{port: at for at, port in enumerate(PORTS_OF_PAGES)}}
        for port, at in numbered.items():
            text = re.sub(rf":{port}\b", f":{self._base + at}", text)
        return text

    def run(self, block: Block, *, before: str = "", more: Mapping[str, str] | None = None) -> str:
        """Run it, and return what it writes. `before`: a program's lines before its own, or a pipeline's options.

        Raises AssertionError.
        """
        text = self.translated(block.text)
        if block.language == SHELL:
            command = ["bash", "-e", "-o", "pipefail", "-c", text]
        elif block.language == PYTHON:
            program = self.home / f"program_{block.line}.py"
            program.write_text(f"{before}{text}\n", encoding="utf-8")
            command = [sys.executable, str(program)]
        else:
            file = self.home / f"pipeline_{block.line}.toml"
            file.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "headrace.spark.pipelines", str(file), *before.split()]
        return self.ran(command, f"{block.page}:{block.line}", more)

    def typed(self, text: str) -> str:
        """Run a shell's lines, as a block."""
        return self.run(Block("the test", 0, SHELL, text))

    def run_lines(self, block: Block, ends: Sequence[int]) -> str:
        """As `run`, for a shell's lines that end with these codes."""
        lines = self.translated(block.text).splitlines()
        each = zip(lines, ends, strict=True)
        return "".join(self.ran(["bash", "-c", line], f"{block.page}:{block.line}", end=end) for line, end in each)

    def ran(self, command: list[str], what: str, more: Mapping[str, str] | None = None, *, end: int = 0) -> str:
        with (self.place / "out").open("w+") as out:
            done = subprocess.run(
                command,
                cwd=self.home,
                env={**self.environment, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=BLOCK_S,
                check=False,
            )
            out.seek(0)
            told = out.read()
        assert done.returncode == end, f"{what} ends with {done.returncode}:\n{command[-1]}\n{told[-3000:]}"
        return told

    def with_kafka_tools(self) -> None:
        """Put Kafka's `kafka-configs.sh` on the PATH. Raises CalledProcessError."""
        command = [*kafka_jars.QUICK_JAVA, "-cp", kafka_jars.class_path(), "kafka.admin.ConfigCommand"]
        file = self.home / ".venv" / "bin" / "kafka-configs.sh"
        file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
        file.chmod(0o755)

    def kill(self, address: str) -> None:
        """The broker that listens at that address of the pages."""
        pid = int((self.place / "brokers" / f"{self.translated(address)}.pid").read_text())
        os.killpg(pid, signal.SIGKILL)

    def kill_broker(self, number: int) -> None:
        """The one of that id, of brokers that one command started. Its end is the end of its process."""
        told = "".join(file.read_text() for file in (self.place / "brokers").glob("*.out"))
        found = re.search(rf"^broker {number} pid (\d+) ", told, re.MULTILINE)
        assert found, told
        os.kill(int(found[1]), signal.SIGKILL)

    def _new_host(self) -> str:
        return f"127.{self._random.randrange(1, 255)}.{self._random.randrange(256)}.{self._random.randrange(1, 255)}"

    def _free_base(self) -> int:
        """The first of as many ports in a row as pages name, at which nobody listens."""
        count = len(PORTS_OF_PAGES) + 1
        while True:
            base = self._random.randrange(PORTS.start, PORTS.stop - count)
            with suppress(OSError):
                for port in range(base, base + count):
                    for host in (self.host, *self._hosts.values()):
                        with socket.socket() as trial:
                            trial.bind((host, port))
                return base

    def _made(self) -> None:
        for name in ("home/.venv/bin", "brokers", "srv/store", *(root[1:] for root in ROOTS)):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        tools = self.home / ".venv" / "bin"
        names = {"python": sys.executable, "address": self.bootstrap, "place": self.place, "root": ROOT}
        names |= {"forked": ROOT / "tools" / "forked.py", "door": self._door.path}
        names |= {name: text.format(**names) for name, text in (WARM if warm.is_on() else COLD).items()}
        for name, text in {"headrace": SHIM, "make": MAKE}.items():
            (tools / name).write_text(text.format(**names))
            (tools / name).chmod(0o755)
        (tools / "activate").touch()
        for name in ("python", "python3"):
            (tools / name).symlink_to(sys.executable)
        left_out = {name for name in os.environ if name.startswith(("HEADRACE_", "AWS_"))}
        self.environment |= {name: value for name, value in os.environ.items() if name not in left_out}
        self.environment |= {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HEADRACE_BOOTSTRAP": self.bootstrap,
            "HEADRACE_NATIVE": "0",
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{self.home}",
            "NO_COLOR": "1",
            "XDG_CONFIG_HOME": str(self.place / "settings"),
        }
