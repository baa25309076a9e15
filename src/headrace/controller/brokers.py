"""Decides on brokers: their incarnations, who leads when one goes or comes, and their producer ids. Their removal is
decided in `controller.removal`.

Promises:
- One broker's coming or going is one decision, and so one entry. Where it has very many partitions, they follow in
  slices (`settle_broker`), each of which is right by itself.
- The ISR is never empty.
- A broker leads only partitions of whose ISR it is a member.
- Where the cluster shares logs, any live broker may lead (`controller.shared_logs`).
- A repeated request changes nothing.

Sources: KIP-631 (broker epochs, incarnations), KIP-730 (producer ids), DESIGN "Placement and failover".
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    ProducerId,
    TopicPartition,
)
from headrace.base.limits import BROKER_TEXT_CHARS_MAX, PRODUCER_ID_BLOCK_SIZE
from headrace.controller.decision import Decision, Refusal, decided, stale
from headrace.controller.elections import (
    Among,
    disk_lost,
    returned,
    started_anew,
    taken_out,
)
from headrace.controller.levels import unfit
from headrace.metadata.events import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ClusterBorn,
    MetadataEvent,
    ProducerIdsAllocated,
)
from headrace.metadata.image import MetadataImage
from headrace.metadata.levels import METADATA_LEVEL, METADATA_LEVEL_MIN, born_at
from headrace.metadata.values import Endpoint, Engine
from headrace.wire.errors import ErrorCode


def register_broker(
    image: MetadataImage,
    *,
    cluster_id: ClusterId,
    broker_id: BrokerId,
    directory_id: DirectoryId,
    endpoints: tuple[Endpoint, ...],
    rack: str | None = None,
    incarnation: IncarnationId | None = None,
    engine: Engine = Engine.LOCAL,
    level: int = METADATA_LEVEL,
    level_min: int = METADATA_LEVEL_MIN,
    in_session: bool = False,
    unfenced: bool = False,
) -> Decision[BrokerEpoch | Refusal]:
    """Register a new incarnation, which fences the one before it. Each partition that the broker led gets a new leader
    epoch, even where it is elected again. The first registration creates the cluster. The result is the broker epoch,
    an int.

    `cluster_id` is the one in the broker's directory. `engine`: the keeper of its partition logs. `level` and
    `level_min`: the feature levels that its release knows. `in_session`: its last incarnation is known to live.
    `unfenced`: it decides itself, and need not ask to be unfenced once it has replayed this.
    """
    refusal = refused_registration(
        image,
        cluster_id=cluster_id,
        broker_id=broker_id,
        directory_id=directory_id,
        endpoints=endpoints,
        rack=rack,
        incarnation=incarnation,
        engine=engine,
        level=level,
        level_min=level_min,
        in_session=in_session,
    )
    if refusal is not None:
        return Decision((), refusal)
    known = image.brokers.get(broker_id)
    if known is not None and incarnation is not None and known.incarnation == incarnation:
        return Decision((), known.epoch)
    epoch = BrokerEpoch(image.index + 1)
    events: list[MetadataEvent] = []
    if not image.cluster_id:
        events += [ClusterBorn(cluster_id=cluster_id, engine=engine), *born_at(level)]
    events.append(
        BrokerRegistered(
            broker_id=broker_id,
            broker_epoch=epoch,
            directory_id=directory_id,
            endpoints=endpoints,
            rack=rack,
            incarnation=incarnation,
            level=level,
            level_min=level_min,
        )
    )
    if unfenced:
        events.append(BrokerUnfenced(broker_id=broker_id, broker_epoch=epoch))
    events.extend(started_anew(image, broker_id, directory_id, live=unfenced))
    return Decision(tuple(events), epoch)


def refused_registration(
    image: MetadataImage,
    *,
    cluster_id: ClusterId,
    broker_id: BrokerId,
    directory_id: DirectoryId,
    endpoints: tuple[Endpoint, ...],
    rack: str | None,
    incarnation: IncarnationId | None,
    engine: Engine = Engine.LOCAL,
    level: int = METADATA_LEVEL,
    level_min: int = METADATA_LEVEL_MIN,
    in_session: bool,
) -> Refusal | None:
    """Return why `register_broker` would refuse it; else None."""
    if problem := _impossible(broker_id, endpoints, rack):
        return Refusal(ErrorCode.INVALID_REQUEST, problem)
    if image.cluster_id and image.cluster_id != cluster_id:
        message = (
            f"The data directory of broker {broker_id} belongs to cluster {cluster_id}, but this is "
            f"{image.cluster_id}: start it with another directory, or name addresses of its own cluster."
        )
        return Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    if image.cluster_id and image.engine is not engine:
        message = (
            f"Broker {broker_id} runs with the engine {engine}, but this cluster has {image.engine}: start it with "
            f"--engine {image.engine}, or name addresses of another cluster."
        )
        return Refusal(ErrorCode.INVALID_REGISTRATION, message)
    if image.cluster_id and (refusal := unfit(image, broker_id, level_min, level)) is not None:
        return refusal
    known = image.brokers.get(broker_id)
    if known is None or (incarnation is not None and known.incarnation == incarnation):
        return None
    if in_session and not known.fenced and known.directory_id != directory_id:
        message = (
            f"Broker {broker_id} runs already, with another data directory: stop that one first, or choose another id."
        )
        return Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
    return None


def _impossible(broker_id: BrokerId, endpoints: tuple[Endpoint, ...], rack: str | None) -> str | None:
    """Return the fault of values that could never be told to clients once they are committed."""
    if not 0 <= broker_id < 2**31:
        return f"{broker_id} is not a broker's id: choose one from 0 to {2**31 - 1}."
    for endpoint in endpoints:
        if not 0 < endpoint.port < 2**16:
            return f"{endpoint.port} is not a port: choose one from 1 to {2**16 - 1}."
    texts = [text for endpoint in endpoints for text in (endpoint.listener, endpoint.host)]
    if any(len(text) > BROKER_TEXT_CHARS_MAX for text in (*texts, rack or "")):
        return f"A listener, a host or a rack has more than {BROKER_TEXT_CHARS_MAX} characters."
    return None


def unfence_broker(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, among: Among = None
) -> Decision[Refusal | None]:
    """Unfence a broker that has replayed its registration and serves. It may lead those of these partitions that no
    other can."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return decided(stale(broker_id, broker_epoch))
    if not known.fenced:
        return decided([])
    unfenced = BrokerUnfenced(broker_id=broker_id, broker_epoch=broker_epoch)
    return decided([unfenced, *returned(image, known, among)])


def fence_broker(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, among: Among = None
) -> Decision[Refusal | None]:
    """Fence a broker: it leaves every ISR of which it is not the last member, and others lead its partitions among
    these. A broker is fenced that is dead or silent, or asks for it before it stops."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return decided(stale(broker_id, broker_epoch))
    if known.fenced:
        return decided([])
    fenced = BrokerFenced(broker_id=broker_id, broker_epoch=broker_epoch)
    return decided([fenced, *taken_out(image, broker_id, among)])


def settle_broker(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, among: Iterable[TopicPartition]
) -> Decision[Refusal | None]:
    """Finish, for these partitions, the changes that were left open when the broker was fenced or unfenced."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return decided(stale(broker_id, broker_epoch))
    return decided([*(taken_out(image, broker_id, among) if known.fenced else returned(image, known, among))])


def lose_disk(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch, among: Iterable[TopicPartition]
) -> Decision[Refusal | None]:
    """Note, for these partitions, the disk that a fenced broker has lost, before it registers with another."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch or not known.fenced:
        return decided(stale(broker_id, broker_epoch))
    return decided([*disk_lost(image, known, among)])


def allocate_producer_ids(
    image: MetadataImage, *, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Decision[tuple[ProducerId, int] | Refusal]:
    """Allocate a block of producer ids that no other broker gets: the first, and their number."""
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != broker_epoch:
        return Decision((), stale(broker_id, broker_epoch))
    start = image.next_producer_id
    block = ProducerIdsAllocated(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        start=start,
        end=ProducerId(start + PRODUCER_ID_BLOCK_SIZE),
    )
    return Decision((block,), (start, PRODUCER_ID_BLOCK_SIZE))
