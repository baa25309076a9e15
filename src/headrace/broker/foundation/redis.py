"""Lays the foundation of a broker whose logs are in Redis.

It claims nothing and binds nothing. Raises UsageError, CorruptData or StorageFailure, each saying what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headrace.base.errors import UsageError
from headrace.base.limits import REDIS_METADATA_BLOCK_MS, REDIS_OPEN_MS_MAX, REDIS_REQUEST_MS_MAX
from headrace.base.ports import Disk, Random
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.cluster.quorum.member import learn_addresses
from headrace.broker.config import BrokerConfig
from headrace.broker.foundation.laid import Foundation
from headrace.broker.home.joining import identify_in
from headrace.metadata.configs import broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import Engine
from headrace.net.peer.peers import Peers
from headrace.raft.membership import Peer
from headrace.storage.redis.engine import RedisEngine
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.links.address import RedisAddress, Topology
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.opening import open_redis
from headrace.storage.redis.metadata.commit_log import RedisCommitLog, RedisStore
from headrace.storage.redis.metadata.durability import Durability
from headrace.storage.redis.metadata.lease import Holder
from headrace.storage.redis.server_side.keys import Keys


async def on_redis(
    config: BrokerConfig,
    address: RedisAddress,
    *,
    disk: Disk,
    random: Random,
    cleans_in_child: bool,
    on_failure: Callable[[BaseException], None],
) -> Foundation:
    """`cleans_in_child`: see `RedisEngine`. `on_failure` is called once, when nothing can be committed any more."""
    if config.join:
        raise UsageError("--join names brokers of a cluster with local logs: on Redis, brokers find each other there.")
    opened: list[Redis] = []
    logs: RedisEngine | None = None
    try:
        commands = await open_redis(address, random)
        opened.append(commands)
        if commands.is_clustered:
            address = replace(address, topology=Topology.CLUSTER)
        namespace = broker_value(EMPTY_IMAGE, config.configs, "redis.namespace", node=config.broker_id).text()
        keys = Keys(namespace, clustered=commands.is_clustered)
        logs = RedisEngine(
            address,
            random=random,
            keys=keys,
            durability=config.configs.get("redis.durability", ""),
            cleans_in_child=cleans_in_child,
        )
        await logs.ready()
        left = await asyncio.get_running_loop().run_in_executor(None, logs.start)
        reading = commands.beside(keys.metadata, timeout_ms=REDIS_METADATA_BLOCK_MS + REDIS_REQUEST_MS_MAX)
        opened.append(reading)
        await reading.ready(REDIS_OPEN_MS_MAX)
        store = RedisStore(commands, keys, str(address))
        identity = await identify_in(store, disk, config.data, config.broker_id, random, engine=Engine.REDIS.value)
        me = Peer(identity.broker_id, identity.directory_id)
        peers = Peers(
            me=me,
            cluster_id=identity.cluster_id,
            listener=config.listeners().inter_broker,
            security=config.peer_security(),
        )
        commit_log = RedisCommitLog(
            commands,
            reading,
            keys,
            name=f"{me.node}-{random.getrandbits(64):016x}",
            about=partial(_holder, me, peers),
            learn=lambda holder: peers.learn(holder.broker, holder.host, holder.port),
            durability=Durability(logs.servers, keys.metadata, partial(_insync, config)),
        )
        metadata = MetadataDriver(commit_log, me=me.node, on_fatal=on_failure)
        metadata.subscribe(partial(learn_addresses, peers))
        _watch_others(metadata, commit_log, peers)
        await metadata.start()
    except BaseException as error:
        for client in opened:
            await client.close()
        if logs is not None:
            await logs.disconnect()
        if isinstance(error, RedisFailure):
            raise UsageError(f"Redis does not serve this broker: {error}") from error
        raise
    return Foundation(kind=Engine.REDIS, identity=identity, metadata=metadata, peers=peers, logs=logs, left=left)


def _watch_others(metadata: MetadataDriver, commit_log: RedisCommitLog, peers: Peers) -> None:
    """Have the controller watch all brokers, and all brokers watch it: Redis tells nobody of a dead process."""

    def watch() -> None:
        leader = commit_log.leader
        if commit_log.holds:
            peers.watch(frozenset(metadata.image.brokers))
        else:
            peers.watch(frozenset() if leader is None else {leader})

    def on_delta(delta: ImageDelta) -> None:
        if commit_log.holds and delta.before.brokers is not delta.after.brokers:
            watch()

    peers.on_peer_dead(commit_log.holder_died)
    metadata.subscribe(on_delta)
    metadata.on_leader(watch)
    metadata.on_controller(lambda _: watch())


def _insync(config: BrokerConfig, image: MetadataImage) -> int:
    return broker_value(image, config.configs, "min.insync.replicas", node=config.broker_id).number()


def _holder(me: Peer, peers: Peers) -> Holder | None:
    address = peers.address
    return None if address is None else Holder(me.node, me.directory, address.host, address.port)
