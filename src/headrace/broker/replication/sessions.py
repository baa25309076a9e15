"""The sessions of all brokers that copy from this one. A broker from which nobody copies loads no more than this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, ClusterId
from headrace.base.ports import Clock
from headrace.broker.kit.tasks import OnBug
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.replication.throttles import BrokerThrottle
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.net.server.connection import Connection

if TYPE_CHECKING:
    from headrace.broker.replication.followers import FollowerSession, Waiting

SESSION: Final = "follower"
"""The key under which a connection keeps its session."""


class Followers:
    """One session for each broker."""

    def __init__(
        self,
        *,
        cluster_id: ClusterId,
        node: BrokerId,
        partitions: Partitions,
        image: Callable[[], MetadataImage],
        clock: Clock,
        throttle: BrokerThrottle,
        on_bug: OnBug,
    ) -> None:
        self.partitions = partitions
        self.throttle = throttle
        self.on_bug: Final = on_bug
        self._cluster_id = cluster_id
        self._node = node
        self._image = image
        self.clock = clock
        self._sessions: dict[BrokerId, FollowerSession] = {}

    def serve(self, frame: memoryview, connection: Connection) -> Waiting | None:
        """Take a frame from a broker that copies. Raises CorruptData, for which the listener closes the connection."""
        session: FollowerSession | None = connection.session.get(SESSION)
        if session is None or frame[: len(session.begins)] != session.begins:
            session = connection.session[SESSION] = self._begin(frame)
        image = self._image()
        broker = image.brokers.get(session.replica)
        if broker is None or broker.epoch != session.broker_epoch or self._sessions.get(session.replica) is not session:
            # It is not known yet, or no longer, or has a newer connection. A broker that may copy comes again.
            connection.abort()
            return None
        return session.on_frame(frame, image, may_join=not broker.fenced)

    def _begin(self, frame: memoryview) -> FollowerSession:
        """Begin a session: the frame is the first on this connection, or names another broker or process than
        before."""
        from headrace.broker.replication.followers import FollowerSession
        from headrace.wire.replica_fetch import decode_who

        who, begins = decode_who(frame)
        if who.cluster_id != self._cluster_id or who.leader != self._node or who.replica == self._node:
            raise CorruptData(
                f"broker {who.replica} takes this broker {self._node} of cluster {self._cluster_id!r} for {who.leader} "
                f"of {who.cluster_id!r:.60}: correct its addresses"
            )
        session = FollowerSession(who, begins, self)
        broker = self._image().brokers.get(who.replica)
        if broker is not None and broker.epoch == who.broker_epoch:  # else it is turned away, and replaces nobody
            if (known := self._sessions.get(who.replica)) is not None:
                known.end()
            self._sessions[who.replica] = session
        return session

    def forget(self, session: FollowerSession) -> None:
        if self._sessions.get(session.replica) is session:
            del self._sessions[session.replica]

    def on_delta(self, delta: ImageDelta) -> None:
        """Note changes of who is live."""
        if delta.before.brokers is not delta.after.brokers:
            for session in list(self._sessions.values()):
                session.on_liveness(delta.after)

    def heard_at(self) -> Mapping[BrokerId, float]:
        """When each follower was last heard of, in monotonic seconds."""
        return {replica: session.heard_at for replica, session in self._sessions.items()}

    def answer_all(self) -> None:
        """Answer every waiting frame, as the broker stops."""
        for session in list(self._sessions.values()):
            session.answer_now()
