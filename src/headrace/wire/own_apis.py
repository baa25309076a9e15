"""The keys of Headrace's own APIs, which brokers and commands use. They are far above those that Kafka assigns.

They are here so that a broker can offer an API without loading its messages.
"""

from __future__ import annotations

from typing import Final

PEERS: Final = 18_514
"""'HR': frames between brokers (`net.peer.peerframes`)."""
REPLICA_FETCH: Final = 18_515
"""`wire.replica_fetch`."""
AILMENTS: Final = 18_516
"""`wire.ailments`."""
DURABLE: Final = 18_517
"""`wire.durable`."""
MOVES: Final = 18_525
"""`wire.moves`."""
