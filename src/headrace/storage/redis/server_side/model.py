"""A model of a Redis server with our functions: deterministic, without a server, for the simulator and the tests.

Promises: `execute` answers what a real server answers, and leaves the same keys; tests compare the two after random
calls. Time is the caller's. `copied` makes an independent copy, from which a failover with loss goes on. It knows the
commands that the engine uses, and no others. Functions read and write keys, as the library in the server does.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

from headrace.storage.redis.errors import refusal
from headrace.storage.redis.server_side.functions import LIBRARY, Status
from headrace.storage.redis.server_side.model_keys import Hash, ModelKeys, Stream, as_bytes

TOMBSTONE_MS: Final = 3_600_000
Answer: TypeAlias = list[int | bytes]
Pairs: TypeAlias = list[tuple[int, bytes]]


class RedisModel(ModelKeys):
    """A server with its keys and the functions of our library."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ms = 0
        self.history = b""
        """The server's replication id, as INFO tells it."""
        self._functions: Final[dict[bytes, Callable[[list[bytes], list[bytes]], Answer]]] = {
            f"{LIBRARY}_{name}".encode(): function
            for name, function in {
                "append": self._append,
                "claim": self._claim,
                "trim": self._trim,
                "cut": self._cut,
                "restart": self._restart,
                "producers": self._producers,
                "clean": self._clean,
                "replace": self._replace,
                "delete": self._delete,
                "take": self._take,
                "renew": self._renew,
                "release": self._release,
                "commit": self._commit,
                "intend": self._intend,
                "doubt": self._doubt,
                "snapshot_part": self._snapshot_part,
                "snapshot": self._snapshot,
            }.items()
        }

    def copied(self) -> RedisModel:
        """An independent copy, as a replica that has everything up to now."""
        other = RedisModel()
        other.keys = copy.deepcopy(self.keys)
        other._expires_ms = dict(self._expires_ms)
        other.history = self.history
        return other

    def execute(self, command: Sequence[object], payload: Sequence[object] = (), *, now_ms: int) -> Any:
        """The reply to one command at a time of the caller's. Raises RedisRefused as a server refuses."""
        self._now_ms = now_ms
        self.expire(now_ms)
        name, *rest = map(as_bytes, (*command, *payload))
        if name == b"FCALL":
            if (function := self._functions.get(rest[0])) is None:
                raise refusal("ERR Function not found")
            count = int(rest[1])
            return function(rest[2 : 2 + count], rest[2 + count :])
        return self.read(name.upper(), rest)

    # partitions

    def _refused(self, key: bytes, topic: bytes, epoch: bytes) -> Answer | None:
        state = self._hash(key)
        if state.get(b"topic") != topic or b"epoch" not in state:
            return [Status.GONE, state.get(b"topic", b""), int(state.get(b"birth", 0))]
        if state[b"epoch"] != epoch:
            return [Status.FENCED, int(state[b"epoch"]), state[b"owner"]]
        return None

    def _append(self, keys: list[bytes], args: list[bytes]) -> Answer:
        stream, state, times = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        expected, batches = int(args[2]), _batches(args[5:], int(args[2]))
        if not batches:
            return [Status.INVALID]
        end, last = self._number(state, b"end"), batches[-1][0]
        if end != expected:
            if last <= end and self._all_there(stream, batches):
                return [Status.DONE, last]
            return [Status.AT, end]
        for number, data in batches:
            self._add(stream, number, b"batch", data)
        position = self._number(state, b"bytes") + sum(len(data) for _, data in batches)
        self._set(state, end=last, bytes=position, newest=b"-1" if args[4] == b"1" else args[3])
        if args[4] == b"1":
            self._add(times, last, b"timestamp", args[3], b"position", b"%d" % position)
        return [Status.DONE, last]

    def _all_there(self, key: bytes, batches: Pairs) -> bool:
        stream = self._stream(key)
        return all(stream.get(number) == (b"batch", data) for number, data in batches)

    def _claim(self, keys: list[bytes], args: list[bytes]) -> Answer:
        state, _, _, epochs, *_ = keys
        topic, birth, epoch, owner = args[0], int(args[1]), int(args[2]), args[3]
        found = self._hash(state)
        if found and found[b"topic"] != topic:
            if birth <= int(found[b"birth"]):
                return [Status.GONE, found[b"topic"], int(found[b"birth"])]
            self._unlink(*keys)
            found = {}
        elif found and b"epoch" not in found:
            return [Status.GONE, topic, int(found[b"birth"])]
        if found:
            if (int(found[b"epoch"]), found[b"owner"]) != (epoch, owner) and int(found[b"epoch"]) >= epoch:
                return [Status.FENCED, int(found[b"epoch"]), found[b"owner"]]
            if int(found[b"epoch"]) < epoch:
                self._unlink(keys[5])
                self._unset(state, b"cleaning", b"reached")
        else:
            self._set(
                state, topic=topic, birth=birth, end=0, start=0, bytes=0, trimmed=0, cleaned=0, clean_to=0, newest=-1
            )
        self._set(state, epoch=epoch, owner=owner)
        end = self._number(state, b"end")
        begun = self._sorted(epochs)
        if not begun or begun[-1][0] != b"%d" % epoch:
            self._rescore(epochs, ((name, at) for name, at in begun if at < end), (b"%d" % epoch, end))
        numbers = (b"start", b"bytes", b"trimmed", b"cleaned")
        return [Status.DONE, end, *(self._number(state, field) for field in numbers)]

    def _trim(self, keys: list[bytes], args: list[bytes]) -> Answer:
        stream, state, times, epochs, aborted = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        start, trimmed = int(args[2]), int(args[3])
        if start > self._number(state, b"end") or trimmed > self._number(state, b"bytes"):
            return [Status.INVALID]
        known = self._number(state, b"start")
        if start < known or (start == known and trimmed <= self._number(state, b"trimmed")):
            return [Status.DONE, self._number(state, b"start")]
        self._set(state, start=start, trimmed=max(trimmed, self._number(state, b"trimmed")))
        self._stream(stream).drop_to(start)
        self._stream(times).drop_to(start)
        self._stream(aborted).drop_to(start)
        begun = self._sorted(epochs)
        if below := [name for name, at in begun if at <= start]:
            self._rescore(epochs, (each for each in begun if each[1] > start), (below[-1], start))
        return [Status.DONE, start]

    def _cut(self, keys: list[bytes], args: list[bytes]) -> Answer:
        stream, state, times, epochs, producers, following, aborted = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        target, most = int(args[2]), int(args[3])
        if not self._number(state, b"start") <= target <= self._number(state, b"end") or most < 1:
            return [Status.INVALID]
        if target == self._number(state, b"end"):
            return [Status.DONE, target]
        mine, found = b"cut:%b:%d" % (args[1], target), self._hash(state)
        reached = int(found[b"reached"]) if found.get(b"cleaning") == mine else 0
        if found.get(b"cleaning") != mine:
            self._unlink(following)
        reached, carried = self._carry(stream, following, reached, target, most)
        if carried == most:
            self._set(state, cleaning=mine, reached=reached)
            return [Status.MORE, reached]
        removed = sum(len(fields[1]) for _, fields in self._stream(stream).above(target))
        self._take_place(following, stream)
        self._carry(times, following, 0, target, 2**31)
        self._take_place(following, times)
        self._carry(aborted, following, 0, target, 2**31)
        self._take_place(following, aborted)
        clean_to = min(target, self._number(state, b"clean_to"))
        self._set(state, end=target, clean_to=clean_to, bytes=self._number(state, b"bytes") - removed)
        if self._number(state, b"aborted") > target:
            self._set(state, aborted=target)
        self._unset(state, b"cleaning", b"reached")
        begun = [(name, at) for name, at in self._sorted(epochs) if at <= target]
        if args[1] not in dict(begun):
            begun = [(name, at) for name, at in begun if at < target] + [(args[1], target)]
        self._rescore(epochs, iter(begun))
        if self._number(producers, b"offset") > target:
            self._unlink(producers)
        return [Status.DONE, target]

    def _carry(self, old: bytes, new: bytes, above: int, till: int, most: int) -> tuple[int, int]:
        """The number that it reached, and how many there were."""
        found = [each for each in self._stream(old).above(above, most) if each[0] <= till]
        for number, fields in found:
            self._add(new, number, *fields)
        return (found[-1][0] if found else above), len(found)

    def _take_place(self, old: bytes, new: bytes) -> None:
        self._unlink(new)
        if old in self.keys:
            self.keys[new] = self.keys.pop(old)

    def _restart(self, keys: list[bytes], args: list[bytes]) -> Answer:
        stream, state, times, epochs, producers, following, aborted, aside = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        at, before = int(args[2]), int(args[3])
        if self._number(state, b"start") >= at:
            return [Status.DONE, at]
        if stream in self.keys:
            self._take_place(stream, aside)
        self._unlink(times, epochs, producers, following, aborted)
        self._set(state, start=at, end=at, bytes=0, trimmed=0, newest=-1, clean_to=0)
        self._unset(state, b"cleaning", b"reached", b"aborted")
        begun = [(args[3], at - 1)] if before >= 0 else []
        self._rescore(epochs, iter([(args[1], at)]), *begun)
        if args[4]:
            self._set(producers, offset=at, state=args[4])
        return [Status.DONE, at]

    def _producers(self, keys: list[bytes], args: list[bytes]) -> Answer:
        state, producers, aborted = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        offset, entries = int(args[2]), _batches(args[4:], 0)
        if offset > self._number(state, b"end") or (len(args) > 4 and (not entries or entries[-1][0] > offset)):
            return [Status.INVALID]
        if (known := self._number(producers, b"offset", -1)) > offset:
            return [Status.STALE, known]
        for end, entry in entries:
            if end > self._number(state, b"aborted"):
                self._add(aborted, end, b"entry", entry)
                self._set(state, aborted=end)
        self._set(producers, offset=offset, state=args[3])
        return [Status.DONE, offset]

    def _clean(self, keys: list[bytes], args: list[bytes]) -> Answer:
        state, following = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        cleaned, number, attempt, expected = self._number(state, b"cleaned"), *map(int, args[2:5])
        if number != cleaned + 1:
            return [Status.STALE, cleaned]
        prefix, under_way = b"%b:%b:" % (args[1], args[2]), self._hash(state).get(b"cleaning", b"")
        if (known := int(under_way.removeprefix(prefix)) if under_way.startswith(prefix) else 0) > attempt:
            return [Status.STALE, known]
        reached, batches = self._number(state, b"reached") if known == attempt else 0, _batches(args[5:], expected)
        if len(args) == 5:
            if known != attempt:
                self._unlink(following)
                self._set(state, cleaning=prefix + args[3], reached=0)
            return [Status.DONE, 0]
        if not batches or batches[-1][0] > self._number(state, b"end"):
            return [Status.INVALID]
        last = batches[-1][0]
        if known != attempt or reached != expected:
            there = last <= reached and self._all_there(following, batches)
            return [Status.DONE, last] if there else [Status.AT, reached]
        for number, data in batches:
            self._add(following, number, b"batch", data)
        self._set(state, reached=last)
        return [Status.DONE, last]

    def _replace(self, keys: list[bytes], args: list[bytes]) -> Answer:
        stream, state, times, following, aborted = keys
        if (no := self._refused(state, args[0], args[1])) is not None:
            return no
        number, _, written, until, most, removed = map(int, args[2:8])
        cleaned, end = self._number(state, b"cleaned"), self._number(state, b"end")
        if number <= cleaned:
            return [Status.DONE, end] if number == cleaned else [Status.STALE, cleaned]
        is_mine = self._hash(state).get(b"cleaning") == b":".join(args[1:4])
        if not is_mine or self._number(state, b"reached") < written:
            return [Status.AT, self._number(state, b"reached")]
        trimmed = self._number(state, b"trimmed") + removed
        index = _triples(args[9:], until)
        if until > end or most < 1 or trimmed > self._number(state, b"bytes") or index is None:
            return [Status.INVALID]
        reached = max(until, self._number(state, b"reached"))
        reached, carried = self._carry(stream, following, reached, 2**63, most)
        if carried == most:
            self._set(state, reached=reached)
            return [Status.MORE, reached]
        self._take_place(following, stream)
        self._stream(stream).drop_to(self._number(state, b"start"))
        later = self._stream(times).above(until)
        self._unlink(times)
        for bare in args[8].split():
            self._stream(aborted).drop(int(bare))
        for at, timestamp, position in index:
            self._add(times, at, b"timestamp", timestamp, b"position", position)
        for at, fields in later:
            self._add(times, at, *fields)
        self._set(state, cleaned=number, clean_to=until, trimmed=trimmed)
        self._unset(state, b"cleaning", b"reached")
        return [Status.DONE, end]

    def _delete(self, keys: list[bytes], args: list[bytes]) -> Answer:
        state = self._hash(keys[0])
        if state and state[b"topic"] != args[0] and int(state[b"birth"]) >= int(args[1]):
            return [Status.GONE, state[b"topic"], int(state[b"birth"])]
        self._unlink(*keys)
        self._set(keys[0], topic=args[0], birth=args[1])
        self._expires_ms[keys[0]] = self._now_ms + TOMBSTONE_MS
        return [Status.DONE, 0]

    # the metadata

    def _take(self, keys: list[bytes], args: list[bytes]) -> Answer:
        lease, token = self._hash(keys[0]), self._number(keys[0], b"token")
        lasts = lease.get(b"holder", b"") != b"" and int(lease[b"until"]) > self._now_ms
        if lasts and lease[b"holder"] != args[0]:
            return [Status.HELD, token, lease[b"holder"], lease[b"about"], int(lease[b"until"]) - self._now_ms]
        if not lasts or token < int(args[3]):
            token = max(token, int(args[3])) + 1
        self._set(keys[0], token=token, holder=args[0], about=args[1], until=self._now_ms + int(args[2]))
        return [Status.DONE, token]

    def _not_holder(self, key: bytes, holder: bytes, token: bytes) -> Answer | None:
        lease = self._hash(key)
        if (lease.get(b"token"), lease.get(b"holder")) == (token, holder):
            return None
        return [Status.FENCED, int(lease.get(b"token", 0)), lease.get(b"holder", b"")]

    def _not_controller(self, lease: bytes, head: bytes, holder: bytes, token: bytes) -> Answer | None:
        if (no := self._not_holder(lease, holder, token)) is not None:
            return no
        history = self._hash(head).get(b"history", b"")
        return [Status.CHANGED, history] if history != self.history else None

    def _renew(self, keys: list[bytes], args: list[bytes]) -> Answer:
        if (no := self._not_controller(keys[0], keys[1], args[0], args[1])) is not None:
            return no
        self._set(keys[0], until=self._now_ms + int(args[2]))
        return [Status.DONE, int(args[1])]

    def _release(self, keys: list[bytes], args: list[bytes]) -> Answer:
        if (no := self._not_holder(keys[0], args[0], args[1])) is not None:
            return no
        self._set(keys[0], holder=b"", about=b"", until=0)
        return [Status.DONE, int(args[1])]

    def _commit(self, keys: list[bytes], args: list[bytes]) -> Answer:
        lease, metadata, head, topics, *hashes = keys
        if (no := self._not_controller(lease, head, args[0], args[1])) is not None:
            return no
        changes = _changes(args[3:-1])
        if len(args) < 4 or changes is None or len(changes) != len(hashes):
            return [Status.INVALID]
        index, events, at = int(args[2]), args[-1], self._number(head, b"index")
        chain = self._hash(head).get(b"chain", b"")
        if at != index:
            found = self._stream(metadata).get(index + 1) if at > index else None
            if found is not None and found[1] == args[1] and found[5] == events:
                return [Status.DONE, index + 1, found[3]]
            return [Status.AT, at, chain]
        chain = hashlib.sha1(chain + b"\n" + args[1] + b"\n" + events).hexdigest().encode()
        self._add(metadata, index + 1, b"token", args[1], b"chain", chain, b"events", events)
        self._set(head, index=index + 1, chain=chain)
        for key, (name, fields) in zip(hashes, changes, strict=True):
            was = dict(self._hash(key))
            self._unlink(key)
            if fields:
                self.keys[key] = dict(fields)
                is_same = b"created" in was and was.get(b"id") == self.keys[key].get(b"id")
                self.keys[key][b"created"] = was[b"created"] if is_same else b"%d" % self._now_ms
                self.keys.setdefault(topics, set()).add(name)
            elif topics in self.keys:
                self.keys[topics].discard(name)
                if not self.keys[topics]:
                    self._unlink(topics)
        return [Status.DONE, index + 1, chain]

    def _intend(self, keys: list[bytes], args: list[bytes]) -> Answer:
        if (no := self._not_holder(keys[0], args[0], args[1])) is not None:
            return no
        if (known := self._number(keys[1], b"intended")) > int(args[2]):
            return [Status.STALE, known]
        self._set(keys[1], intended=args[2])
        return [Status.DONE, int(args[2])]

    def _doubt(self, keys: list[bytes], args: list[bytes]) -> Answer:
        lease, metadata, head = keys
        if (no := self._not_holder(lease, args[0], args[1])) is not None:
            return no
        index, new, events = int(args[2]), int(args[3]), args[6]
        if (new > 0) if not events else (new <= index or index == 0):
            return [Status.INVALID]
        at, chain = self._number(head, b"index"), self._hash(head).get(b"chain", b"")
        if at != index:
            found = self._stream(metadata).get(new) if at >= new else None
            if found is not None and found[1] == args[1] and found[5] == events:
                return [Status.DONE, new, found[3]]
            return [Status.AT, at, chain]
        if not events:
            self._set(head, history=args[4])
            return [Status.DONE, 0, b""]
        chain = hashlib.sha1(chain + b"\n" + args[1] + b"\n" + events).hexdigest().encode()
        self._add(metadata, new, b"token", args[1], b"chain", chain, b"events", events)
        self._set(head, index=new, chain=chain, history=args[4], doubts=args[5])
        return [Status.DONE, new, chain]

    def _snapshot_part(self, keys: list[bytes], args: list[bytes]) -> Answer:
        lease, following, head = keys
        if (no := self._not_controller(lease, head, args[0], args[1])) is not None:
            return no
        found = self._hash(following)
        if (found.get(b"index"), found.get(b"token")) != (args[2], args[1]):
            self._unlink(following)
            self._set(following, index=args[2], token=args[1])
        self._hash(following)[args[3]] = args[4]
        return [Status.DONE, int(args[3])]

    def _snapshot(self, keys: list[bytes], args: list[bytes]) -> Answer:
        lease, metadata, head, snapshot, following = keys
        if (no := self._not_controller(lease, head, args[0], args[1])) is not None:
            return no
        index, parts, keep = map(int, args[2:5])
        if (kept := self._number(snapshot, b"index")) >= index:
            return [Status.DONE if kept == index else Status.STALE, kept]
        found, last = self._hash(following), self._stream(metadata).get(index)
        is_whole = (found.get(b"index"), found.get(b"token")) == (args[2], args[1]) and len(found) == parts + 2
        if last is None or keep > index + 1 or not is_whole:
            return [Status.INVALID]
        self._set(following, chain=last[3], parts=parts)
        self._take_place(following, snapshot)
        self._stream(metadata).drop_to(keep - 1)
        return [Status.DONE, index]


def _batches(args: list[bytes], offset: int) -> Pairs:
    """Pairs of end and batch; empty where the ends do not rise from this offset."""
    if len(args) % 2:
        return []
    pairs = [(int(end), data) for end, data in zip(args[::2], args[1::2], strict=True)]
    ends = [offset, *(end for end, _ in pairs)]
    return pairs if all(low < high for low, high in pairwise(ends)) else []


def _triples(args: list[bytes], limit: int) -> list[tuple[int, bytes, bytes]] | None:
    if len(args) % 3:
        return None
    found = [(int(args[i]), args[i + 1], args[i + 2]) for i in range(0, len(args), 3)]
    ends = [0, *(end for end, _, _ in found)]
    rises = all(low < high for low, high in pairwise(ends))
    return found if rises and ends[-1] <= limit else None


def _changes(args: list[bytes]) -> list[tuple[bytes, Hash]] | None:
    """Each topic's name and fields, none where it is removed."""
    found: list[tuple[bytes, Hash]] = []
    rest = list(args)
    while rest:
        match rest:
            case [b"put", name, count, *more] if int(count) >= 1 and len(more) >= 2 * int(count):
                fields = more[: 2 * int(count)]
                found.append((name, dict(zip(fields[::2], fields[1::2], strict=True))))
                rest = more[2 * int(count) :]
            case [b"del", name, *more]:
                found.append((name, {}))
                rest = more
            case _:
                return None
    return found


__all__ = ["RedisModel", "Stream"]
