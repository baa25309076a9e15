"""The credential that brokers show each other is changed under load, by the recipe of docs/SECURITY.md. Nothing
acknowledged is lost.

Three real processes are restarted one after the other for each step, and no broker ever refuses another.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests import loops
from tests.certificates import Authority
from tests.promises.support.guarded import HOST, GuardedCluster, restarted_in_turn
from tests.promises.support.load import QUIET
from tests.promises.support.records import IDEMPOTENT, OPTIONS, PLAIN, Records, Shape, under_records
from tests.tiers import IS_LONG

MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
SHAPES: Final = {IDEMPOTENT: Shape(), PLAIN: Shape()}
JAAS: Final = "listener.name.brokers.plain.sasl.jaas.config"
FIRST: Final = {"broker": "the first secret"}
SECOND: Final = {"broker2": "the second secret"}


def stores(authority: Authority) -> dict[str, str]:
    return {
        "ssl.keystore.location": str(authority.issue(HOST)),
        "ssl.truststore.location": str(authority.trust),
    }


def by_plain(known: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """Brokers log in as `own`, and let in those of `known`."""
    (user, password), *_ = own.items()
    users = " ".join(f'user_{name}="{secret}"' for name, secret in known.items())
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        JAAS: f'{MODULE} required username="{user}" password="{password}" {users};',
        "super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *known)),
    }


def by_scram(own: str, **passwords: str) -> dict[str, str]:
    """Brokers log in by the mechanism `own`. They have a password of the user `broker` for each mechanism."""
    names = {mechanism: mechanism.replace("_", "-").lower() for mechanism in passwords}
    logins = {
        f"listener.name.brokers.{names[mechanism]}.sasl.jaas.config": (
            f'{SCRAM_MODULE} required username="broker" password="{password}";'
        )
        for mechanism, password in passwords.items()
    }
    return {
        **by_plain(FIRST, own=FIRST),
        **logins,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": own,
    }


def set_password(cluster: GuardedCluster, mechanism: ScramMechanism, password: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    wanted = UserScramCredentialUpsertion("broker", ScramCredentialInfo(mechanism, 4_096), password.encode())
    for done in admin.alter_user_scram_credentials([wanted]).values():
        done.result(150)


def delete_password(cluster: GuardedCluster, mechanism: ScramMechanism) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for done in admin.alter_user_scram_credentials([UserScramCredentialDeletion("broker", mechanism)]).values():
        done.result(150)


def refusals(cluster: GuardedCluster) -> list[str]:
    """Lines of the brokers' logs about one that was not let in."""
    lines = [line for broker in cluster.nodes for line in cluster.log(broker).read_text().splitlines()]
    return [line for line in lines if "let each other in" in line or "authentication failed" in line]


def test_the_password_of_brokers_changes_and_nothing_is_lost(tmp_path: Path) -> None:
    tls = stores(Authority.made(tmp_path / "authority"))

    async def work() -> None:
        async with GuardedCluster(tmp_path, 3, *OPTIONS) as cluster:
            cluster.configure(tls | by_plain(FIRST, own=FIRST))
            async with under_records(cluster, SHAPES) as records:
                for known, own in ((FIRST | SECOND, FIRST), (FIRST | SECOND, SECOND), (SECOND, SECOND)):
                    cluster.configure(tls | by_plain(known, own=own))
                    await restarted_in_turn(cluster, records)
            assert not refusals(cluster)

    loops.run(work())


async def come_to_scram(cluster: GuardedCluster, records: Records, tls: dict[str, str]) -> None:
    """From PLAIN. The short form stops all of them at once: they come together again, though none has metadata then."""
    await asyncio.to_thread(set_password, cluster, ScramMechanism.SCRAM_SHA_256, "old")
    if IS_LONG:
        for own in ("PLAIN", "SCRAM-SHA-256"):
            cluster.configure(tls | by_scram(own, SCRAM_SHA_256="old"))
            await restarted_in_turn(cluster, records)
        assert not refusals(cluster)
    cluster.configure(tls | by_scram("SCRAM-SHA-256", SCRAM_SHA_256="old"))
    await records.acknowledged(1)
    await cluster.kill(*cluster.nodes)
    await cluster.start(*cluster.nodes)
    await records.in_sync()


def test_brokers_come_to_scram_and_change_its_password(tmp_path: Path) -> None:
    tls = stores(Authority.made(tmp_path / "authority"))

    async def work() -> None:
        async with GuardedCluster(tmp_path, 3, *OPTIONS) as cluster:
            cluster.configure(tls | by_plain(FIRST, own=FIRST))
            async with under_records(cluster, SHAPES) as records:
                await come_to_scram(cluster, records, tls)
                await asyncio.to_thread(set_password, cluster, ScramMechanism.SCRAM_SHA_512, "new")
                cluster.configure(tls | by_scram("SCRAM-SHA-512", SCRAM_SHA_256="old", SCRAM_SHA_512="new"))
                await restarted_in_turn(cluster, records)
                assert not refusals(cluster)
                await asyncio.to_thread(delete_password, cluster, ScramMechanism.SCRAM_SHA_256)

    loops.run(work())
