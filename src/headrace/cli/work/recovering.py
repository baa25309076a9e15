"""The requests of `headrace durable recover` to brokers, and its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from headrace.base.errors import UsageError
from headrace.cli.command_config import reached
from headrace.cli.output import note
from headrace.net.client.durable import DurableLink
from headrace.net.client.errors import ClientError, ConnectionLostError
from headrace.net.client.members import Members


class Recovered(NamedTuple):
    """The result for a topic's partitions without a leader, or the plan for them."""

    partitions: Sequence[Mapping[str, Any]]
    """As `broker.durable.recovering.RecoveryView`."""
    led: int
    """Number of other partitions, which have a leader and are left alone."""


async def recover(bootstrap: str, topic: str, partition: int | None, to: int | None, *, execute: bool) -> Recovered:
    """Ask the broker that is to continue, where it is named. Otherwise ask the first that accepts a connection and has
    a store. Raises UsageError where that broker, or every broker, has no store; ClientError where the request is
    refused as a whole.
    """
    silent: ClientError | None = None
    async with reached(bootstrap) as cluster:
        living = [broker for broker in await Members(cluster).brokers() if not broker.fenced]
        for broker in sorted(living, key=lambda broker: broker.id != to):
            async with AsyncExitStack() as stack:
                try:
                    link = await stack.enter_async_context(DurableLink(broker.address, cluster.security, on_wait=note))
                except ConnectionLostError as error:
                    silent = error  # it may have just died
                    continue
                answer = await link.recover(topic, partition, to, execute=execute)
            if broker.id == to and not answer["has_store"]:
                raise UsageError(f"Broker {to} has no durable store (durable.url), and could not lead: name another.")
            if answer["has_store"]:
                if answer["error"]:
                    raise ClientError(answer["error"])
                return Recovered(answer["partitions"], answer["led"])
    if silent is not None:
        raise silent
    raise UsageError("No broker has a durable store (durable.url): there is nothing to recover from.")


def recovery_lines(one: Mapping[str, Any], *, done: bool) -> Iterator[str]:
    """Lines on the recovery of one partition, or the plan for it, and its cost."""
    if one["refusal"]:
        yield one["refusal"]
        return
    name, old, end = f"{one['topic']}-{one['partition']}", ", ".join(map(str, one["replicas"])), one["end_offset"]
    goes = "goes on" if done else "would go on"
    yield f"{name}: broker {one['target']} {goes} behind durable history, at offset {end + 1}"
    if done:
        fate = f"its log is set aside should broker {old} come back"
    else:
        fate = (
            f"start broker {old} rather, if its disk can be had; if not, see that it is stopped for good, for one that "
            "is only cut off goes on to acknowledge"
        )
    yield f"{name}: offset {end} is the last that is durable; what was acknowledged above it is lost: {fate}"
    if len(one["replicas"]) > 1:
        more = f"headrace topic reassign {one['topic']} --replication-factor {len(one['replicas'])}"
        yield f"{name}: it has one replica then; where none are being added, '{more}' adds others"
    if one["warning"]:
        yield f"{name}: {one['warning']}"
