"""Finds the cluster of a starting broker.

It is its directory's, or a new one. It may be the one that answers at the addresses to join, or the one in a shared
store.

Promises:
- With addresses to join, no cluster is born: the broker waits until one of them answers.
- In a shared store one cluster is born, whichever brokers come first. A store that has lost it is refused by every
  broker that was part of it.
- A directory of another cluster is refused, and the message says so.

Source: DESIGN "Birth, identity, membership".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId, ClusterId
from headrace.base.limits import JOIN_BACKOFF_MS, JOIN_BACKOFF_MS_MAX, JOIN_TIMEOUT_MS
from headrace.base.ports import Disk, Random
from headrace.broker.home.identity import Identity, joining, load, load_or_create, new_cluster_id, write
from headrace.broker.told_wait import ToldWait
from headrace.logs import get_logger
from headrace.net.client.errors import AuthenticationError, ClientError, RefusedError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.wire.apis import ApiKey

log = get_logger(__name__)


async def identify(
    disk: Disk,
    data: Path,
    broker_id: BrokerId,
    random: Random,
    join: Sequence[Address],
    security: ClientSecurity = PLAIN,
) -> Identity:
    """Return the identity of this directory, which is claimed already. With an empty directory and a cluster to join,
    wait until one of the addresses answers. Raises UsageError."""
    loop = asyncio.get_running_loop()
    if not join:
        return await loop.run_in_executor(None, load_or_create, disk, data, broker_id, random)
    found = await loop.run_in_executor(None, load, disk, data, broker_id)
    if found is not None:
        theirs = await _first_answer(join, security, set())
        if theirs is not None and theirs[1] != found.cluster_id:
            raise UsageError(
                f"The data directory {data} belongs to cluster {found.cluster_id}, but {theirs[0]} to {theirs[1]}: "
                "choose an empty directory, or name addresses of its own cluster."
            )
        return found
    made = joining(random, await _wait_for_answer(join, security), broker_id)
    await loop.run_in_executor(None, write, disk, data, made)
    return made


class SharedStore(Protocol):
    """The store of a cluster's metadata that all of its brokers reach."""

    @property
    def place(self) -> str:
        """An address without secrets."""

    async def cluster_id(self) -> ClusterId | None:
        """Return the id of the cluster that is there."""

    async def begin(self, cluster_id: ClusterId) -> ClusterId:
        """Begin a cluster of this id, where there is none. Returns the id of the one that is there."""


async def identify_in(
    store: SharedStore, disk: Disk, data: Path, broker_id: BrokerId, random: Random, *, engine: str
) -> Identity:
    """Return the identity of this directory, which is claimed already, in the cluster of the store. Raises
    UsageError."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, load, disk, data, broker_id, engine)
    cluster_id = await store.cluster_id()
    if cluster_id is None:
        if found is not None:
            raise UsageError(
                f"{data} belongs to cluster {found.cluster_id}, of which {store.place} has nothing: restore it from a "
                "backup, or choose an empty directory to begin a new cluster."
            )
        cluster_id = await store.begin(new_cluster_id(random))
    if found is None:
        found = joining(random, cluster_id, broker_id, engine)
        await loop.run_in_executor(None, write, disk, data, found)
    elif found.cluster_id != cluster_id:
        raise UsageError(
            f"The data directory {data} belongs to cluster {found.cluster_id}, but {store.place} to {cluster_id}: "
            "choose an empty directory, or name the store of its own cluster."
        )
    return found


async def _wait_for_answer(join: Sequence[Address], security: ClientSecurity) -> ClusterId:
    backoff_ms, told, wait = JOIN_BACKOFF_MS, set[str](), ToldWait()
    while (answer := await _first_answer(join, security, told)) is None:
        if wait.is_due():
            addresses = [str(address) for address in join]
            log.warning("waiting for a broker of the cluster to join", join=addresses, seconds=wait.seconds)
        await asyncio.sleep(backoff_ms / 1000)
        backoff_ms = min(2 * backoff_ms, JOIN_BACKOFF_MS_MAX)
    return answer[1]


async def _first_answer(
    join: Sequence[Address], security: ClientSecurity, told: set[str]
) -> tuple[Address, ClusterId] | None:
    """Ask the addresses in turn; return the first that answers and its cluster. None where none answers. `told`:
    failures that are logged already."""
    for address in join:
        try:
            if cluster_id := await cluster_at(address, security=security):
                return address, cluster_id
        except AuthenticationError as error:
            if str(error) not in told:
                told.add(str(error))
                log.warning("a broker and this one do not let each other in", address=str(address), reason=str(error))
        except ClientError as error:
            log.debug("no answer", address=str(address), reason=str(error))
    return None


async def cluster_at(
    address: Address, *, timeout_ms: int = JOIN_TIMEOUT_MS, security: ClientSecurity = PLAIN
) -> ClusterId | None:
    """Return the cluster of the broker at this address; None where it was not born yet. Raises ClientError."""
    from headrace.net.client.connection import connect
    from headrace.wire.messages.describe_cluster import DescribeClusterRequest

    connection = await connect(address, client_id="headrace-broker", timeout_ms=timeout_ms, security=security)
    try:
        response = await connection.request(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_ms=timeout_ms)
    except RefusedError:
        return None
    finally:
        await connection.close()
    return ClusterId(response.cluster_id) if response.cluster_id else None
