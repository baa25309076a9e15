"""The audit log: what is written, what is not, and how much of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.base.limits import AUDIT_LINES_OF_A_CLIENT_BURST_MAX
from headrace.broker.requests.audit import AuditLog
from headrace.broker.requests.rights import Decided
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.security.authorizer import ALLOWED, DENIED, Action, Client, Verdict
from headrace.wire.apis import ApiKey
from headrace.wire.messages import create_acls, metadata
from tests.broker.group_broker import RawClient
from tests.broker.guarded import ROOT, TOPIC, guarded

ALICE: Final = Client("User:alice", "10.0.0.1")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.s = 100.0

    def monotonic(self) -> float:
        return self.s

    def now_ms(self) -> int:
        return int(self.s * 1000)


def decided(verdict: Verdict, client: Client = ALICE, name: str = "t") -> Decided:
    action = Action(AclOperation.WRITE, ResourceType.TOPIC, name)
    return Decided(client, "CLIENT", ApiKey.PRODUCE, action, verdict)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def audit(path: Path, clock: Clock, *, grants: bool = False, bytes_max: int = 1 << 20) -> AuditLog:
    log = AuditLog(path, clock, grants=grants, bytes_max=bytes_max, files=2)
    log.start()
    return log


@pytest.mark.parametrize("grants", [False, True])
def test_denials_are_written_and_grants_where_that_is_asked_for(tmp_path: Path, grants: bool) -> None:
    log = audit(tmp_path / "log", Clock(), grants=grants)
    log.decided(decided(ALLOWED))
    log.decided(decided(DENIED))
    log.authenticated(*ALICE, "CLIENT", "PLAIN", None)
    log.authenticated(*ALICE, "CLIENT", "PLAIN", "wrong password")
    log.stop()
    told = lines(tmp_path / "log")[:-1]
    assert [line["allowed"] for line in told] == ([True, False, True, False] if grants else [False, False])
    denied = next(line for line in told if not line["allowed"])
    assert denied == {
        "at": "1970-01-01T00:01:40.000+00:00",
        "principal": "User:alice",
        "address": "10.0.0.1",
        "event": "authorization",
        "listener": "CLIENT",
        "api": "Produce",
        "operation": "WRITE",
        "resource": "TOPIC:t",
        "allowed": False,
        "acl": None,
    }


def test_no_name_breaks_out_of_its_line(tmp_path: Path) -> None:
    log = audit(tmp_path / "log", Clock())
    evil = 'x"}\r\n{"principal": "User:root", "allowed": true}\u2028\x1b[2J'
    log.decided(decided(DENIED, Client(f"User:{evil}", "h"), evil))
    log.stop()
    (told, _) = (tmp_path / "log").read_bytes().splitlines()
    assert json.loads(told)["resource"] == f"TOPIC:{evil}"
    assert all(32 <= byte < 127 for byte in told)


def test_a_line_is_short_however_long_a_name_is(tmp_path: Path) -> None:
    log = audit(tmp_path / "log", Clock())
    log.decided(decided(DENIED, name="n" * 1_000_000))
    log.stop()
    assert all(len(line) < 10_000 for line in (tmp_path / "log").read_bytes().splitlines())


def test_one_client_has_its_share_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    log = audit(tmp_path / "log", clock)
    for _ in range(AUDIT_LINES_OF_A_CLIENT_BURST_MAX + 7):
        log.decided(decided(DENIED))
    log.decided(decided(DENIED, Client("User:bob", "h")))
    clock.s += 1
    log.decided(decided(DENIED))
    log.stop()
    told = lines(tmp_path / "log")
    assert len(told) == AUDIT_LINES_OF_A_CLIENT_BURST_MAX + 3
    assert [line.get("left_out") for line in told[-3:]] == [None, 7, 0]


def test_who_claims_many_names_has_one_share(tmp_path: Path) -> None:
    log = audit(tmp_path / "log", Clock())
    for number in range(AUDIT_LINES_OF_A_CLIENT_BURST_MAX + 7):
        log.authenticated(f"User:{number}", "10.0.0.9", "CLIENT", "PLAIN", "wrong password")
    log.decided(decided(DENIED))
    log.stop()
    told = lines(tmp_path / "log")
    assert len(told) == AUDIT_LINES_OF_A_CLIENT_BURST_MAX + 2
    assert [told[1]["principal"], told[-2]["principal"], told[-1]["left_out"]] == ["User:1", "User:alice", 7]


def test_files_are_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    log = audit(tmp_path / "log", Clock(), bytes_max=4096)
    for number in range(100):
        log.decided(decided(DENIED, name=str(number)))
    log.stop()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["log", "log.1", "log.2"]
    assert all(path.stat().st_size <= 4096 for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert lines(tmp_path / "log")[-2]["resource"] == "TOPIC:99"


async def test_a_broker_writes_the_acl_that_decided_and_the_file_is_its_owners(tmp_path: Path) -> None:
    async with guarded(tmp_path / "data") as found:
        acl = create_acls.AclCreation(2, TOPIC, 3, "User:127.0.0.9", "*", 8, 2)
        async with RawClient(found.address, host=ROOT) as root, RawClient(found.address, host="127.0.0.9") as client:
            await root.ask(3, create_acls.CreateAclsRequest(creations=(acl,)))
            await client.ask(9, metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(name=TOPIC),)))
    path = tmp_path / "data" / "audit.log"
    told = [line for line in lines(path) if line["event"] == "authorization"]
    assert [(line["principal"], line["api"], line["resource"]) for line in told] == [
        ("User:127.0.0.9", "Metadata", f"TOPIC:{TOPIC}")
    ]
    assert told[0]["acl"]["permission"] == "DENY"
    assert path.stat().st_mode & 0o077 == 0
