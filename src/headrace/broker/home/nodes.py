"""The brokers of `headrace up --nodes N`: where each keeps its data and listens, and the birth of their cluster.

Promises:
- All voters are named to all before any starts, durably and once.
- After that, a broker whose directory is empty comes back as a learner, never as the voter that it was.
- Where all directories are empty, or the only one is, nothing starts: no cluster is left to come back to.
- Two supervisors never share a directory.
- No other program takes a broker's port while the supervisor is there, as far as the system allows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.base.ports import Disk, Lock, Random
from headrace.broker.home import identity
from headrace.broker.home.ports import HeldPorts

FILE_NAME: Final = "nodes.json"
NODES_MAX: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker to start."""

    id: BrokerId
    data: Path
    listen: Address


class Claim:
    """The directory and the ports that a supervisor has for itself."""

    def __init__(self, directory: Lock, ports: HeldPorts) -> None:
        self.directory: Final = directory
        self.ports: Final = ports

    def release(self) -> None:
        self.ports.release()
        self.directory.release()


def prepare(
    disk: Disk, data: Path, listen: Address, count: int, random: Random, *, shared: bool = False
) -> tuple[Claim, list[Node]]:
    """Claim the directory and the ports, and create the cluster where there is none yet. `shared`: the cluster is in a
    store that all brokers reach, and each finds it there. Blocking. Raises UsageError."""
    if not 1 <= count <= NODES_MAX:
        raise UsageError(f"--nodes {count} cannot be: choose 1 to {NODES_MAX}.")
    if listen.is_wildcard:
        raise UsageError(
            f"The brokers of --nodes are told to each other and to clients as they listen, and nobody can connect to "
            f"{listen}: name one address with --listen HOST:PORT."
        )
    if disk.exists(data / identity.FILE_NAME):
        raise UsageError(f"{data} is one broker's directory: start it without --nodes, or choose another one.")
    lock = identity.claim(disk, data)
    ports = HeldPorts(())
    try:
        plan = _load(disk, data / FILE_NAME)
        if plan is None:
            if not listen.port:
                ports = HeldPorts.free(listen.host, count, random)
            plan = _plan(listen, ports.numbers or range(listen.port, listen.port + count), random, shared=shared)
            _save(disk, data / FILE_NAME, plan)
        _check(plan, data, listen, count, shared=shared)
        nodes = _nodes(disk, data, plan, shared=shared)
    except BaseException:
        Claim(lock, ports).release()
        raise
    return Claim(lock, ports if ports.numbers else HeldPorts.of(node.listen for node in nodes)), nodes


def _nodes(disk: Disk, data: Path, plan: dict[str, Any], *, shared: bool) -> list[Node]:
    nodes = [
        Node(id=BrokerId(node["id"]), data=data / f"broker-{node['id']}", listen=Address(node["host"], node["port"]))
        for node in plan["nodes"]
    ]
    if not plan["born"]:
        for node, fields in zip(nodes, plan["nodes"], strict=True):
            made = identity.decode(fields["identity"])
            disk.make_directory(node.data)
            disk.sync_directory(data)
            identity.write(disk, node.data, made)
        _save(disk, data / FILE_NAME, plan | {"born": True})
    elif not shared and not any(disk.exists(node.data / identity.FILE_NAME) for node in nodes):
        raise UsageError(
            f"The cluster in {data} was born, and none of its brokers' directories is left: restore one from a copy, "
            "or begin a new cluster in an empty directory."
        )
    return nodes


def _check(plan: dict[str, Any], data: Path, listen: Address, count: int, *, shared: bool) -> None:
    known = len(plan["nodes"])
    if known != count:
        raise UsageError(f"{data} holds a cluster of {known} brokers: start it with --nodes {known}.")
    if plan["shared"] != shared:
        engine = "redis" if plan["shared"] else "local"
        raise UsageError(f"{data} holds a cluster of the engine '{engine}': start it with --engine {engine}.")
    first = Address(plan["nodes"][0]["host"], plan["nodes"][0]["port"])
    if listen.port and listen != first:
        raise UsageError(f"The cluster in {data} listens from {first} on: start it with --listen {first}.")


def _plan(listen: Address, ports: Sequence[int], random: Random, *, shared: bool) -> dict[str, Any]:
    ids = [BrokerId(number) for number in range(1, len(ports) + 1)]
    addresses = {broker_id: (listen.host, port) for broker_id, port in zip(ids, ports, strict=True)}
    born = identity.born(random, addresses)
    nodes = [
        {"id": one.broker_id, "host": listen.host, "port": port, "identity": identity.encode(one)}
        for one, port in zip(born, ports, strict=True)
    ]
    if shared:  # no identity is made before the store has said which cluster it has
        nodes = [{key: node[key] for key in ("id", "host", "port")} for node in nodes]
        return {"version": 1, "born": True, "shared": True, "nodes": nodes}
    return {"version": 1, "born": False, "shared": False, "nodes": nodes}


def _load(disk: Disk, path: Path) -> dict[str, Any] | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        plan = json.loads(file.read(0, file.size()))
        shared = bool(plan.get("shared", False))
        return {"born": bool(plan["born"]), "shared": shared, "nodes": list(plan["nodes"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: restore it from a copy, or choose an empty directory.") from error
    finally:
        file.close()


def _save(disk: Disk, path: Path, plan: dict[str, Any]) -> None:
    identity.write_durably(disk, path, json.dumps(plan, indent=1) + "\n")
