"""Requests to the controller, and its answers, as JSON.

Promises: `decode_ask(encode_ask(c, x)) == (c, x)`. Input that is not such JSON raises CorruptData.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Generic

from headrace.base.errors import CorruptData
from headrace.base.ids import ClusterId
from headrace.base.values import Value
from headrace.controller.asks.asking import Ask, R_co
from headrace.controller.decision import Refusal
from headrace.metadata.codec import shape_of

ASKS: Final[Mapping[str, str]] = {
    "CreateTopics": "topics",
    "DeleteTopics": "topics",
    "CreatePartitions": "topics",
    "AlterConfigs": "configs",
    "AlterQuotas": "access",
    "CreateAcls": "access",
    "DeleteAcls": "access",
    "AlterScram": "access",
    "ElectLeaders": "replicas",
    "AlterIsr": "replicas",
    "LeaveIsr": "replicas",
    "RenewCopies": "replicas",
    "ReassignPartitions": "moves",
    "MovePartitions": "moves",
    "ProveMove": "moves",
    "SealMove": "moves",
    "FinishMove": "moves",
    "FailTarget": "moves",
    "GiveUpMove": "moves",
    "PublishSegment": "history",
    "DeleteHistory": "history",
    "ReplaceSegments": "history",
    "RecoverPartitions": "history",
    "FinalizeLevel": "brokers",
    "AllocateProducerIds": "brokers",
    "RegisterBroker": "brokers",
    "Heartbeat": "brokers",
    "RemoveBroker": "brokers",
    "ChangeVoter": "brokers",
    "ReadQuorum": "brokers",
}
"""The name of each request, and its module, which is loaded on first use."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Answer(Value, Generic[R_co]):
    """An answer of the controller. `index`: the entry of the commit log that it rests on."""

    index: int
    result: R_co | Refusal


def encode_ask(cluster_id: ClusterId, ask: Ask[Any]) -> bytes:
    """Return the request as one JSON object, UTF-8."""
    kind: Any = type(ask)
    fields = {"cluster": cluster_id, "ask": kind.__name__, **shape_of(kind).encode(ask)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_ask(data: bytes) -> tuple[ClusterId, Ask[Any]]:
    """Return the asking broker's cluster, and its request. Raises CorruptData."""
    value = _object(data)
    cluster_id = ClusterId(shape_of(str).decode(value.get("cluster"), "cluster"))
    name = value.get("ask")
    if not isinstance(name, str) or name not in ASKS:
        raise CorruptData(f"What a broker asks, {name!r:.60}, is unknown to this controller's version.")
    cls: Any = getattr(import_module(f"headrace.controller.asks.{ASKS[name]}"), name)
    return cluster_id, typing.cast("Ask[Any]", shape_of(cls).decode(value, name))


def encode_answer(ask: Ask[Any], answer: Answer[Any]) -> bytes:
    value: dict[str, Any] = {"index": answer.index}
    if isinstance(answer.result, Refusal):
        value["refusal"] = shape_of(Refusal).encode(answer.result)
    elif ask.RESULT is not None:
        value["result"] = shape_of(ask.RESULT).encode(answer.result)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_answer(ask: Ask[R_co], data: bytes) -> Answer[R_co]:
    """Return the answer. Raises CorruptData."""
    value = _object(data)
    index = shape_of(int).decode(value.get("index"), "index")
    if "refusal" in value:
        return Answer(index=index, result=shape_of(Refusal).decode(value["refusal"], "refusal"))
    result = None if ask.RESULT is None else shape_of(ask.RESULT).decode(value.get("result"), "result")
    return Answer(index=index, result=typing.cast("R_co", result))


def encode_leader(address: tuple[str, int] | None) -> bytes:
    """Return the leader's address as JSON, for the answer of a broker that is not the controller."""
    return json.dumps({"leader": address}).encode()


def decode_leader(data: bytes) -> tuple[str, int] | None:
    """Return host and port. Raises CorruptData."""
    return typing.cast("tuple[str, int] | None", shape_of(_LEADER).decode(_object(data).get("leader"), "leader"))


_LEADER: Final[Any] = tuple[str, int] | None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"What a broker sent to another is not JSON: {data[:60]!r}.") from error
    if not isinstance(value, dict):
        raise CorruptData(f"What a broker sent to another is not a JSON object: {data[:60]!r}.")
    return value
