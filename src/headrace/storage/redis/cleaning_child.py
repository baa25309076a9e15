"""The slow half of a compaction in a process of its own: `python -m headrace.storage.redis.cleaning_child`.

It reads a job and the server's address from standard input, and writes the other Stream. The result goes to standard
output. Each is one line of JSON. Standard input is a pipe, so that no password is on a command line.

Promises: it runs at the lowest priority, and at most at the job's rate. It ends at once when standard input ends, so it
never outlives its broker. The other Stream counts only once the broker says so, and every call names the leader epoch.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import uuid
from asyncio.subprocess import PIPE
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import LeaderEpoch, Offset, TopicId
from headrace.storage.engine.cleaning import Stopped
from headrace.storage.redis.cleaning import CleanedStream, StreamJob, Work, pacer
from headrace.storage.redis.entries import entries
from headrace.storage.redis.errors import RedisFailure, RedisUnreachable
from headrace.storage.redis.links.address import Credentials, RedisAddress, TlsFiles
from headrace.storage.redis.links.blocking import BlockingConnection
from headrace.storage.redis.links.connection import Argument, Place, Reply
from headrace.storage.redis.server_side.functions import CleaningTry, IndexEntry, PartitionFunctions
from headrace.storage.redis.server_side.keys import PartitionKeys
from headrace.wire.transactions import AbortedTransaction

NICE: Final = 10
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class ChildRunner:
    """A `Prepare` that runs a job in a child process. `place_of` tells the server of a key."""

    def __init__(self, address: RedisAddress, place_of: Callable[[str], Place]) -> None:
        self._address = address
        self._place_of = place_of

    async def __call__(self, job: StreamJob, stopping: asyncio.Event, bytes_per_second: float) -> CleanedStream:
        place = self._place_of(job.functions.keys.stream)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.storage.redis.cleaning_child"),
            stdin=PIPE,
            stdout=PIPE,
            limit=ANSWER_BYTES_MAX,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        stop = asyncio.ensure_future(stopping.wait())
        answer = asyncio.ensure_future(child.stdout.readline())
        try:
            with suppress(ConnectionError):
                child.stdin.write(encode_job(job, self._address, place, bytes_per_second))
                await child.stdin.drain()
            await asyncio.wait((answer, stop), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Stopped
            return decode_cleaned(answer.result())
        finally:
            stop.cancel()
            answer.cancel()
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def encode_job(job: StreamJob, address: RedisAddress, place: Place, bytes_per_second: float) -> bytes:
    tls = address.tls
    fields = {
        "stream": job.functions.keys.stream,
        "topic_id": str(job.functions.topic_id),
        "epoch": job.functions.epoch,
        "cleaning": job.cleaning,
        "start": job.start,
        "sources": job.sources,
        "dirty_from": job.dirty_from,
        "now_ms": job.now_ms,
        "delete_retention_ms": job.delete_retention_ms,
        "range_bytes": job.range_bytes,
        "remembered": sorted(job.remembered),
        "tombstones_from": job.tombstones_from,
        "keys_max": job.keys_max,
        "aborted": job.aborted,
    }
    server = {
        "path": place.path,
        "host": place.host,
        "port": place.port,
        "user": address.credentials.user,
        "password": address.credentials.password,
        "database": address.database,
        "tls": None if tls is None else [tls.authorities, tls.certificate, tls.key],
    }
    message = {"job": fields, "server": server, "bytes_per_second": bytes_per_second}
    return json.dumps(message).encode() + b"\n"


def decode_job(line: bytes) -> tuple[StreamJob, BlockingConnection, float]:
    message = json.loads(line)
    fields: dict[str, Any] = message["job"]
    functions = PartitionFunctions(
        PartitionKeys(fields.pop("stream")),
        TopicId(uuid.UUID(fields.pop("topic_id"))),
        LeaderEpoch(fields.pop("epoch")),
    )
    fields["cleaning"] = CleaningTry(*fields["cleaning"])
    fields["sources"] = [_index_entry(each) for each in fields["sources"]]
    fields["remembered"] = frozenset(fields["remembered"])
    fields["aborted"] = [AbortedTransaction(*each) for each in fields["aborted"]]
    job = StreamJob(functions=functions, **fields)
    return job, _connection(message["server"]), message["bytes_per_second"]


def _index_entry(fields: tuple[int, int, int]) -> IndexEntry:
    end, timestamp, position = fields
    return IndexEntry(Offset(end), timestamp, position)


def _connection(server: dict[str, Any]) -> BlockingConnection:
    tls = None
    if server["tls"] is not None:
        authorities, certificate, key = server["tls"]
        tls = TlsFiles(authorities=authorities, certificate=certificate, key=key).context()
    place = Place(path=server["path"], host=server["host"], port=server["port"], tls=tls)
    credentials = Credentials(user=server["user"], password=server["password"])
    return BlockingConnection(place, credentials, database=server["database"])


def encode_cleaned(cleaned: CleanedStream) -> bytes:
    fields = {
        "clean_to": cleaned.clean_to,
        "written": cleaned.written,
        "removed": cleaned.removed,
        "index": cleaned.index,
        "bare": cleaned.bare,
    }
    return json.dumps(fields).encode() + b"\n"


def decode_cleaned(line: bytes) -> CleanedStream:
    """Return the child's result. Raises what the child met, and RedisUnreachable where the answer is incomplete because
    the child was ended."""
    if not line.endswith(b"\n"):
        raise RedisUnreachable("The process that compacts ended before it had said what came of it.")
    answer = json.loads(line)
    match answer.get("problem"):
        case None:
            index = [_index_entry(each) for each in answer["index"]]
            clean_to, written = Offset(answer["clean_to"]), Offset(answer["written"])
            return CleanedStream(
                clean_to=clean_to, written=written, removed=answer["removed"], index=index, bare=answer["bare"]
            )
        case "stopped":
            raise Stopped
        case "redis":
            raise RedisUnreachable(answer["text"])
        case "corrupt":
            raise CorruptData(answer["text"])
        case _:
            raise StorageFailure(answer["text"])


def prepared(line: bytes) -> bytes:
    """Do the job in this line, and return the line that answers."""
    job, server, bytes_per_second = decode_job(line)

    def ask(*command: Argument, key: str = "") -> Reply:
        return server.call(*command)

    try:
        work = Work(job, lambda start, end: entries(ask, job.functions.keys.stream, start, end), server.run)
        return encode_cleaned(work.prepare(pacer(bytes_per_second, lambda: False)))
    except Stopped:
        problem, text = "stopped", ""
    except RedisFailure as error:
        problem, text = "redis", str(error)
    except CorruptData as error:
        problem, text = "corrupt", str(error)
    except StorageFailure as error:
        problem, text = "failed", str(error)
    finally:
        server.close()
    return json.dumps({"problem": problem, "text": text}).encode() + b"\n"


def _end_with_input() -> None:
    """End the process with its standard input, which the broker keeps open as long as it lives and wants the result."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    os.nice(NICE)
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.stdout.buffer.write(prepared(line))
    sys.stdout.flush()
    os._exit(0)  # the thread may hold standard input, on which a usual end would wait


if __name__ == "__main__":
    main()
