"""Lays the foundation of a broker whose logs are on its own disk.

It claims nothing and binds nothing. Raises UsageError, CorruptData or StorageFailure, each saying what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.ports import Clock, Disk, Random
from headrace.broker.cluster.quorum.commit_log import metadata_on_raft
from headrace.broker.config import BrokerConfig
from headrace.broker.foundation.laid import Foundation
from headrace.broker.home.identity import check_memory
from headrace.broker.home.joining import identify
from headrace.broker.home.lineage import Superseded, check_superseded
from headrace.broker.home.places import check_places, make_places
from headrace.controller.lost_quorum import superseded
from headrace.metadata.configs import broker_value
from headrace.metadata.values import Engine
from headrace.net.peer.peers import Peers
from headrace.raft.membership import Membership, Peer
from headrace.storage.log.compaction.runners import CleaningRunner
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.journal.journal import Journal, JournalSettings


async def on_local_logs(
    config: BrokerConfig,
    *,
    clock: Clock,
    disk: Disk,
    random: Random,
    cleaning: CleaningRunner | None,
    on_failure: Callable[[BaseException], None],
) -> Foundation:
    """`cleaning`: as for `Broker`. `on_failure` is called once, when nothing can be committed any more."""
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, check_superseded, disk, config.data)
    security = config.peer_security()
    identity = await identify(disk, config.data, config.broker_id, random, config.join, security)
    config.peer_security(has_others=len(identity.voters) > 1)  # or they would not let it in
    await loop.run_in_executor(None, check_memory, disk, config.data)
    await loop.run_in_executor(None, check_places, disk, config.data, identity)
    me = Peer(identity.broker_id, identity.directory_id)
    peers = Peers(
        me=me,
        cluster_id=identity.cluster_id,
        recovery_least=identity.recovery_least,
        listener=config.listeners().inter_broker,
        security=security,
    )
    for voter in identity.voters:
        if voter.host is not None and voter.port is not None:
            peers.learn(voter.broker_id, voter.host, voter.port)
    metadata = metadata_on_raft(
        disk=disk,
        directory=config.data / "metadata",
        me=me,
        random=random,
        voters=Membership(frozenset(Peer(voter.broker_id, voter.directory_id) for voter in identity.voters)),
        transport=peers,
        clock=clock,
        on_fatal=on_failure,
    )
    peers.on_superseded(lambda lineage: metadata.give_up(Superseded(superseded(lineage))))
    await metadata.start()
    bytes_max = broker_value(metadata.image, config.configs, "log.journal.max.bytes", node=identity.broker_id).number()
    settings = config.journal or JournalSettings.within(bytes_max)
    journal = Journal(disk, config.data / "journal", identity.directory_id.bytes, settings)
    logs = LocalLogEngine(disk, config.data / "logs", journal=journal, cleaning=cleaning)
    try:
        await loop.run_in_executor(None, make_places, disk, config.data, identity)
        left = await loop.run_in_executor(None, logs.start)
    except BaseException:
        await metadata.stop()
        raise
    return Foundation(kind=Engine.LOCAL, identity=identity, metadata=metadata, peers=peers, logs=logs, left=left)
