"""The network between the members of the quorum: messages out over one connection for each member, messages in from the
broker's ordinary listener.

Promises:
- `send` never waits. The queue is bounded, and the oldest messages are dropped.
- All messages that one turn of the loop sends to a member go in one write.
- Where a session has an end (KIP-368), another connection is opened before that, and the first one serves until then.
- A peer of another cluster, with another identity than assumed, or with malformed messages is closed with one log line.
- A peer of another lineage (a log from before the quorum was recovered by force, or after that) is ignored. The member
  whose lineage is behind is informed, and calls `on_superseded`.
- A member is "plainly dead" if its connection broke, in either direction, and it refuses a new one where it listened.
  Then it has no process any more. That is reported once for each former connection.

Never does: promise that a message arrives.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Final, cast

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import NO_LINEAGE, BrokerId, ClusterId, Lineage
from headrace.base.limits import (
    PEER_ADDRESSES_MAX,
    PEER_ANSWER_BYTES_MAX,
    PEER_BACKOFF_MS_MAX,
    PEER_BACKOFF_MS_MIN,
    PEER_CONNECT_MS_MAX,
    PEER_FRAME_BYTES,
    PEER_FRAME_MESSAGES_MAX,
    PEER_QUEUE_BYTES_MAX,
    PEER_QUEUE_MESSAGES_MAX,
    PEER_UNACKNOWLEDGED_MS_MAX,
    PEERS_MAX,
)
from headrace.base.ports import Buffer
from headrace.logs import get_logger
from headrace.net.client.security.dialing import dial
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.peer.peerframes import (
    Envelope,
    decode_envelope,
    decode_messages,
    encode_frame,
    encoded,
    weight,
)
from headrace.net.server.connection import Connection
from headrace.raft.membership import Peer
from headrace.raft.messages import Message
from headrace.wire.frames import LENGTH_BYTES

log = get_logger(__name__)
_UNKNOWN: Final = ClusterId("")
_STEADY_SECONDS: Final = 1.0
"""A connection that lasted this long, or as long as its session, was a good one: the next attempt follows at once."""


class AddressBook:
    """Addresses where members listen, the newest information first. Wrong ones do little harm: others are tried in
    turn.
    """

    def __init__(self) -> None:
        self._known: dict[BrokerId, list[Address]] = {}

    def learn(self, node: BrokerId, address: Address) -> bool:
        """Note that the node listens there. Returns whether that is news."""
        known = self._known.get(node)
        if known is None:
            if len(self._known) >= PEERS_MAX:
                return False
            known = self._known[node] = []
        if known and known[0] == address:
            return False
        if address in known:
            known.remove(address)
        known.insert(0, address)
        del known[PEER_ADDRESSES_MAX:]
        return True

    def find(self, node: BrokerId, attempt: int) -> Address | None:
        """The address for this attempt: each attempt gets another one, as far as there are several. None where none is
        known.
        """
        known = self._known.get(node)
        return known[attempt % len(known)] if known else None


class Peers:
    """See the module. Call `attach` before the first message, and set `cluster_id` as soon as it is known."""

    def __init__(
        self,
        *,
        me: Peer,
        cluster_id: ClusterId = _UNKNOWN,
        recovery_least: int = 0,
        listener: str = "PLAINTEXT",
        security: ClientSecurity = PLAIN,
    ) -> None:
        """`recovery_least`: while this member has no log, it adopts no lineage of an earlier recovery. `listener`: the
        one by which members reach each other, and `security`: how it lets them in.
        """
        self.me: Final = me
        self.security: Final = security
        self.listener: Final = listener
        self.cluster_id = cluster_id
        """Empty: not known yet, so nothing is sent or accepted."""
        self.address: Address | None = None
        """Where this member listens, as told to the others; None: not bound yet."""
        self.book: Final = AddressBook()
        self._lineage: Lineage | None = None
        """None: this member has no log yet, and adopts the lineage of the first member that sends to it."""
        self._recovery_least = recovery_least
        self._on_superseded: Callable[[Lineage], None] | None = None
        self._told: set[BrokerId] = set()
        """Members that were told that their lineage is over, for one log line each."""
        self._receive: Callable[[Message], None] | None = None
        self._on_dead: list[Callable[[BrokerId], None]] = []
        self._links: dict[BrokerId, _Link] = {}
        self._heard: dict[BrokerId, tuple[Connection, Address]] = {}
        """The connection over which a member last sent, and its stated address."""
        self._stopped = False

    def attach(self, receive: Callable[[Message], None]) -> None:
        """Have `receive` called with every message, on the loop."""
        self._receive = receive

    def on_peer_dead(self, callback: Callable[[BrokerId], None]) -> None:
        """Have the callback called, on the loop, when a member's process is plainly dead."""
        self._on_dead.append(callback)

    def on_superseded(self, callback: Callable[[Lineage], None]) -> None:
        """Have the callback called, on the loop, when a member reports a later lineage than this member's."""
        self._on_superseded = callback

    def follow(self, lineage: Lineage) -> None:
        """Set the lineage of this member's log."""
        self._lineage = lineage

    @property
    def lineage(self) -> Lineage:
        return self._lineage or NO_LINEAGE

    def learn(self, node: BrokerId, host: str, port: int) -> None:
        """Note that a member listens there."""
        if node != self.me.node:
            self._learn(node, Address(host, port))

    def _learn(self, node: BrokerId, address: Address) -> None:
        if self.book.learn(node, address) and (link := self._links.get(node)) is not None:
            link.look_again()

    def send(self, message: Message) -> None:
        if self._stopped or not self.cluster_id or message.target.node == self.me.node:
            return
        node = message.target.node
        link = self._links.get(node)
        if link is None:
            if len(self._links) >= PEERS_MAX:
                return
            link = self._links[node] = _Link(self, node)
        link.send(message)

    def serve(self, frame: memoryview, connection: Connection) -> list[Buffer] | None:
        """Handle a frame from another member. Returns a reply where that member's lineage is over, otherwise None.
        Raises CorruptData, for which the listener closes the connection.
        """
        envelope, at = decode_envelope(frame)
        if envelope.cluster_id != self.cluster_id:
            raise CorruptData(
                f"broker {envelope.source.node} of cluster {envelope.cluster_id!r:.60} speaks to this one of cluster "
                f"{self.cluster_id!r}: correct its addresses"
            )
        if envelope.target.node != self.me.node or envelope.source.node == self.me.node:
            raise CorruptData(
                f"broker {envelope.source.node} takes this broker {self.me.node} for {envelope.target.node}: correct "
                "its addresses, or the ids"
            )
        if self._lineage is None and envelope.target != self.me:
            return None  # for a disk of this broker's past: it does not tell which lineage to follow
        if self._lineage is None:
            self._take(envelope)
        elif envelope.lineage != self._lineage:
            return self._tell_strangers(envelope)
        messages = decode_messages(frame, at, envelope)
        source = envelope.source.node
        if envelope.address is not None:
            self._learn(source, envelope.address)
            if source in self._heard or len(self._heard) < PEERS_MAX:
                self._heard[source] = (connection, envelope.address)
        if self._receive is not None and not self._stopped:
            for message in messages:
                self._receive(message)
        return None

    def _take(self, envelope: Envelope) -> None:
        """Adopt the lineage. Raises CorruptData for one that is over: this member may have forgotten its vote there."""
        if envelope.lineage.number < self._recovery_least:
            raise CorruptData(
                f"broker {envelope.source.node} does not know of recovery {self._recovery_least} of the quorum, after "
                "which this one joins again: start it with --join and an address of the recovered cluster"
            )
        self._lineage = envelope.lineage

    def _tell_strangers(self, envelope: Envelope) -> list[Buffer]:
        """Handle a frame of another lineage: its messages belong to another log and would damage this one. Raises
        CorruptData unless the sender's lineage is the older one.
        """
        source, theirs, ours = envelope.source, envelope.lineage, self.lineage
        self.hear_of(theirs)
        if theirs.number >= ours.number:
            raise CorruptData(
                f"broker {source.node} follows recovery {theirs} of the quorum, this one {ours}: one of the two "
                "has to be given up"
            )
        if source.node not in self._told and len(self._told) < PEERS_MAX:
            self._told.add(source.node)
            log.warning("a broker from before the quorum was recovered is told to stop", broker_id=source.node)
        return [encode_frame(Envelope(self.cluster_id, self.me, source, self.address, ours), ())]

    def hear_of(self, lineage: Lineage) -> None:
        """Another member follows this lineage."""
        is_later = self._lineage is not None and lineage.number > self._lineage.number
        if is_later and self._on_superseded is not None and not self._stopped:
            self._on_superseded(lineage)

    def on_answer(self, frame: memoryview) -> None:
        """Handle a member's reply over this member's own connection: it only says that this member's lineage is over.
        Raises CorruptData.
        """
        envelope, _ = decode_envelope(frame)
        if envelope.cluster_id == self.cluster_id and envelope.target == self.me:
            self.hear_of(envelope.lineage)

    def was_refused(self, node: BrokerId, address: Address, *, lost: bool) -> bool:
        """Called by a link: the address refuses connections. `lost`: a connection to it has just broken. Returns
        whether to try again soon, since the member's own connection may be about to break.
        """
        heard = self._heard.get(node)
        if heard is not None and not heard[0].is_open:
            del self._heard[node]
            lost = lost or heard[1] == address
        if lost:
            self._tell_dead(node)
        return not lost and heard is not None and heard[0].is_open

    def _tell_dead(self, node: BrokerId) -> None:
        for callback in self._on_dead:
            callback(node)

    def watch(self, nodes: Set[BrokerId]) -> None:
        """Hold a connection to each of these members, also while nothing is sent, so that a death is noticed at once.
        It is for members that send nothing to each other: all other connections are closed."""
        self.forget(self._links.keys() - nodes)
        if not self._stopped:
            for node in nodes - self._links.keys() - {self.me.node}:
                if len(self._links) < PEERS_MAX:
                    self._links[node] = _Link(self, node, watches=True)
                    self._links[node].connect()

    def forget(self, nodes: Set[BrokerId]) -> None:
        """Close the connections to nodes that are no longer members."""
        for node in nodes & self._links.keys():
            self._links.pop(node).stop()

    def stop(self) -> None:
        """Close everything. Unwritten messages are dropped. Idempotent."""
        self._stopped = True
        for link in self._links.values():
            link.stop()
        self._links.clear()


class _Link(asyncio.Protocol):
    """The connection to one member, opened when there is something to send. `watches`: it is kept open."""

    def __init__(self, peers: Peers, node: BrokerId, *, watches: bool = False) -> None:
        self._peers = peers
        self._node = node
        self._watches = watches
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Handle | None = None
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._former: asyncio.Transport | None = None
        """The connection of which another one has taken the place."""
        self._lasts_s = 0.0
        """Seconds for which a connection serves before another takes its place; 0: its session has no end."""
        self._writable = True
        self._opened_at = 0.0
        self._attempts = 0
        """Connections tried since a steady one."""
        self._lost_address: Address | None = None
        """Address of the last connection, until it is known whether the member is still there."""
        self._dialled: Address | None = None
        """That address by the name for which its certificate is."""
        self._distrust = ""
        """Why the two last did not let each other in, for one log line each."""
        self._looks_again = False
        self._answer = b""
        self._stopped = False

    def send(self, message: Message) -> None:
        self._queue.append(message)
        self._queued_bytes += weight(message)
        while self._queued_bytes > PEER_QUEUE_BYTES_MAX or len(self._queue) > PEER_QUEUE_MESSAGES_MAX:
            if len(self._queue) == 1:
                break
            self._queued_bytes -= weight(self._queue.popleft())
        if self._transport is not None:
            if self._flushing is None and self._writable:
                self._flushing = asyncio.get_running_loop().call_soon(self._flush)
        elif self._connecting is None and self._pause is None:
            self.connect()

    def _flush(self) -> None:
        """Write all waiting messages, in frames of one addressee each."""
        self._flushing = None
        transport, peers = self._transport, self._peers
        while self._queue and transport is not None and self._writable:
            target, messages, size = self._queue[0].target, list[Message](), 0
            while self._queue and self._queue[0].target == target and len(messages) < PEER_FRAME_MESSAGES_MAX:
                size += weight(self._queue[0])
                if messages and size > PEER_FRAME_BYTES:
                    break
                messages.append(self._queue.popleft())
                self._queued_bytes -= weight(messages[-1])
            envelope = Envelope(peers.cluster_id, peers.me, target, peers.address, peers.lineage)
            transport.write(encode_frame(envelope, encoded(messages)))

    # connecting

    def connect(self) -> None:
        self._pause = None
        if not self._stopped and self._connecting is None and self._transport is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open(), name=f"connect to {self._node}")

    async def _open(self) -> None:
        address = self._dialled = self._lost_address or self._peers.book.find(self._node, self._attempts)
        try:
            if address is None:
                raise OSError(f"nobody has said where broker {self._node} listens")
            _, lasts_s = await dial(
                address, lambda: self, security=self._peers.security, timeout_ms=PEER_CONNECT_MS_MAX
            )
            self._lost_address, self._looks_again = None, False
            self._renew_after(lasts_s)
            self._distrust = ""
        except (OSError, TimeoutError, HeadraceError) as error:
            self._connecting = None
            transport, self._transport = self._transport, None
            if transport is not None:  # made too late, as after a standstill: uvloop reports its close to nobody
                transport.abort()
            self._failed(error, address)
        else:
            self._connecting = None
            if self._stopped:
                self.stop()

    def _renew_after(self, seconds: float) -> None:
        self._lasts_s = seconds
        if seconds and self._transport is not None:
            self._renewal = asyncio.get_running_loop().call_later(seconds, self._renew)

    def _renew(self) -> None:
        """The session ends soon: open another connection, while this one serves."""
        self._renewal = asyncio.get_running_loop().create_task(
            self._open_next(), name=f"renew the link to {self._node}"
        )

    async def _open_next(self) -> None:
        """Where it does not succeed it is tried again. The connection's own end tells whether the member is dead."""
        assert self._dialled is not None, "it is open"
        successor = _Successor()
        try:
            _, lasts_s = await dial(
                self._dialled, lambda: successor, security=self._peers.security, timeout_ms=PEER_CONNECT_MS_MAX
            )
            if successor.transport is None:
                raise ConnectionResetError("it was lost at once")
        except asyncio.CancelledError:
            successor.abort()
            raise
        except (OSError, TimeoutError, HeadraceError):
            successor.abort()
            self._renewal = asyncio.get_running_loop().call_later(PEER_BACKOFF_MS_MAX / 1000, self._renew)
        else:
            self._go_over_to(successor.transport, lasts_s)

    def _go_over_to(self, transport: asyncio.Transport, lasts_s: float) -> None:
        """The former connection still sends all that was written to it."""
        former, self._renewal = self._transport, None
        assert former is not None, "its end would have cancelled this"
        former.set_protocol(asyncio.Protocol())
        former.close()
        self._former = former
        transport.set_protocol(self)
        self.connection_made(transport)
        self._renew_after(lasts_s)

    def _failed(self, error: Exception, address: Address | None) -> None:
        lost, self._lost_address, self._looks_again = self._lost_address, None, False
        if isinstance(error, HeadraceError) and str(error) != self._distrust:
            self._distrust = str(error)
            log.warning("a broker and this one do not let each other in", broker_id=self._node, reason=str(error))
        self._drop_queue()  # the messages would be outdated
        self._back_off()
        if address is not None and isinstance(error, ConnectionRefusedError) and not self._stopped:
            self._looks_again = self._peers.was_refused(self._node, address, lost=lost is not None)

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _back_off(self) -> None:
        seconds = min(PEER_BACKOFF_MS_MIN << min(max(self._attempts - 1, 0), 10), PEER_BACKOFF_MS_MAX) / 1000
        self._attempts += 1
        if not self._stopped and self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(seconds, self._after_pause)

    def _after_pause(self) -> None:
        self._pause = None
        if self._queue or self._watches or self._looks_again or self._lost_address is not None:
            self.connect()

    def look_again(self) -> None:
        """The member listens elsewhere than was known. A link that watches it waits no longer: a process that dies
        before the first connection is dead to nobody."""
        if self._watches and self._pause is not None:
            self._pause.cancel()
            self._attempts = 0
            self.connect()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have its methods, not its type
        self._writable = True
        self._answer = b""
        self._opened_at = asyncio.get_running_loop().time()
        self._transport.set_write_buffer_limits(high=PEER_FRAME_BYTES)
        _watch(transport.get_extra_info("socket"))
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Read a reply, which only comes where this member's lineage is over."""
        self._answer += data
        size = LENGTH_BYTES + int.from_bytes(self._answer[:LENGTH_BYTES])
        if LENGTH_BYTES <= size <= len(self._answer) <= PEER_ANSWER_BYTES_MAX:
            with suppress(CorruptData):  # another kind of program
                self._peers.on_answer(memoryview(self._answer)[LENGTH_BYTES:size])
        if len(self._answer) >= size or len(self._answer) > PEER_ANSWER_BYTES_MAX:
            self._answer = b""

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if self._stopped or transport is None:
            return
        peer = transport.get_extra_info("peername")
        self._lost_address = Address(str(peer[0]), int(peer[1])) if peer else None
        if not self._peers.security.is_plain:
            self._lost_address = self._dialled
        loop = asyncio.get_running_loop()
        self._drop_queue()
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        if loop.time() - self._opened_at >= min(_STEADY_SECONDS, self._lasts_s or _STEADY_SECONDS):
            self._attempts = 0
        if self._attempts == 0:
            self._attempts = 1
            loop.call_soon(self.connect)
        else:
            self._back_off()

    def stop(self) -> None:
        self._stopped = True
        self._drop_queue()
        for pending in (self._pause, self._flushing, self._connecting, self._renewal):
            if pending is not None:
                pending.cancel()
        self._pause = self._flushing = self._renewal = None
        for transport in (self._former, self._transport):
            if transport is not None:
                transport.abort()
        self._former = self._transport = None


class _Successor(asyncio.Protocol):
    """A connection that is to take the place of another. `transport` is None where it is not open."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _watch(own: socket.socket | None) -> None:
    """Detect a machine that lost power: it never closes its connections."""
    if own is None:
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_UNACKNOWLEDGED_MS_MAX)
