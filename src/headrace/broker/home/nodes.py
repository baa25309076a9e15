"""The brokers of `headrace up --nodes N`: where each keeps its data and listens, and the birth of their cluster.

Promises:
- All voters are named to all before any starts, durably and once.
- After that, a broker whose directory is empty comes back as a learner, never as the voter that it was.
- Where all directories are empty, or the only one is, nothing starts: no cluster is left to come back to.
- Two supervisors never share a directory.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.base.ports import Disk, Lock, Random
from headrace.broker.home import identity

FILE_NAME: Final = "nodes.json"
NODES_MAX: Final = 9
PORTS: Final = range(20_000, 32_000)
"""The range in which free ports are looked for. It lies below the ports that the system gives to clients, so a killed
broker finds its own still free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker to start."""

    id: BrokerId
    data: Path
    listen: Address


def prepare(
    disk: Disk, data: Path, listen: Address, count: int, random: Random, *, shared: bool = False
) -> tuple[Lock, list[Node]]:
    """Claim the directory, and create the cluster where there is none yet. `shared`: the cluster is in a store that all
    brokers reach, and each finds it there. Blocking. Raises UsageError."""
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
    try:
        return lock, _prepared(disk, data, listen, count, random, shared=shared)
    except BaseException:
        lock.release()
        raise


def _prepared(disk: Disk, data: Path, listen: Address, count: int, random: Random, *, shared: bool) -> list[Node]:
    plan = _load(disk, data / FILE_NAME)
    if plan is None:
        plan = _plan(listen, count, random, shared=shared)
        _save(disk, data / FILE_NAME, plan)
    _check(plan, data, listen, count, shared=shared)
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


def _plan(listen: Address, count: int, random: Random, *, shared: bool) -> dict[str, Any]:
    ports = list(range(listen.port, listen.port + count)) if listen.port else free_ports(listen.host, count, random)
    ids = [BrokerId(number) for number in range(1, count + 1)]
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


def free_ports(host: str, count: int, random: Random) -> list[int]:
    """Return `count` ports on which nobody listens now. Raises UsageError where they cannot be found."""
    found: list[int] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(100 * count):
        port = random.randrange(PORTS.start, PORTS.stop)
        with suppress(OSError), socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            if port not in found:
                found.append(port)
        if len(found) == count:
            return found
    raise UsageError(f"No free ports were found at {host}: name one with --listen HOST:PORT.")


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
