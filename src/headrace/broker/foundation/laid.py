"""A broker's foundation, which each engine lays in its own way.

- `local`: the commit log by Raft among the brokers, and logs in the data directory.
- `redis`: both in one Redis, which all brokers of the cluster share. The data directory keeps the identity alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.values import Value
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.home.identity import Identity
from headrace.metadata.values import Engine
from headrace.net.peer.peers import Peers
from headrace.storage.engine.engines import LogEngine, LogRemoval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Foundation(Value):
    """See the module. The metadata is recovered, and the engine has started."""

    kind: Engine
    identity: Identity
    metadata: MetadataDriver
    peers: Peers
    logs: LogEngine
    left: Sequence[LogRemoval]
    """Deletions of logs that an earlier life of this broker has not finished."""

    @property
    def is_alone(self) -> bool:
        """Whether this node decides, and there is no other member. Only once the metadata has started."""
        voters = self.metadata.voters
        return voters is not None and self.metadata.is_controller and len(voters.membership.members) == 1
