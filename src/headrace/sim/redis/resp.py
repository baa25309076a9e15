"""RESP3 as a server speaks it: the bytes of replies."""

from __future__ import annotations

from typing import Any

from headrace.storage.redis.errors import RedisRefused


def encoded(reply: Any) -> bytes:
    """The bytes of one reply. Text is a simple string; bytes are a bulk string."""
    match reply:
        case None:
            return b"_\r\n"
        case RedisRefused():
            return b"-%b\r\n" % reply.text.encode()
        case int():
            return b":%d\r\n" % reply
        case float():
            return b",%b\r\n" % f"{reply:g}".encode()
        case str():
            return b"+%b\r\n" % reply.encode()
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case dict():
            pairs = (encoded(key) + encoded(value) for key, value in reply.items())
            return b"%%%d\r\n%b" % (len(reply), b"".join(pairs))
        case set():
            return b"~%d\r\n%b" % (len(reply), b"".join(map(encoded, sorted(reply))))
        case list() | tuple():
            return b"*%d\r\n%b" % (len(reply), b"".join(map(encoded, reply)))
    raise TypeError(f"{reply!r:.80} is no reply")
