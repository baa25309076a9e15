"""The command `headrace` for a shell, forked by a process that has imported everything (`tools.warm.Door`).

`python -I -S tools/forked.py DOOR [--apart PIDFILE] ARGUMENT...`. The forked process has the standard streams, the
environment and the directory of this one. It gets the signals of this one, which ends with its exit code. With
`--apart` it begins a session, its pid is in PIDFILE, and this process ends at once. Nothing but Python's own modules is
imported: that takes 15 ms.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
ANSWER_BYTES_MAX = 64
APART = "--apart"


def main(door: str, arguments: list[str]) -> int:
    file = arguments[1] if arguments[:1] == [APART] else None
    wanted = {
        "arguments": arguments if file is None else arguments[2:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "is_apart": file is not None,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(door)
        socket.send_fds(asked, [json.dumps(wanted).encode()], [0, 1, 2])
        pid = int(asked.recv(ANSWER_BYTES_MAX))
        if file is not None:
            with open(file, "w", encoding="ascii") as told:
                told.write(f"{pid}\n")
            return 0
        for each in FORWARDED:
            signal.signal(each, lambda number, _: os.kill(pid, number))
        code = int(asked.recv(ANSWER_BYTES_MAX))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
