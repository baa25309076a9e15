"""A member of a consumer group that reads, commits half of what there is, says so, and waits to be killed."""

from __future__ import annotations

import signal
import sys

from tests.interop.test_consumer_groups import COUNT, member


def main(bootstrap: str, group: str, topic: str) -> None:
    reader = member(bootstrap, group)
    reader.subscribe([topic])
    for _ in range(COUNT // 2):
        message = None
        while message is None:
            message = reader.poll(1)
        reader.commit(message, asynchronous=False)
        print((message.value() or b"").decode(), flush=True)
    print("done", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
