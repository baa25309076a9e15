"""kcat of Debian, with its own librdkafka: it logs in by SCRAM over TLS, or by a certificate. Its settings are in a
file, as its users have them.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from headrace.broker.boot import Broker
from tests.certificates import OVER, Authority
from tests.sasl_broker import SASL, make_users, sasl_broker
from tools.debian_packages import kcat

pytestmark = pytest.mark.skipif(kcat.missing() is not None, reason=kcat.missing() or "")

PASSWORD: Final = "wonder;land"
TIMEOUT_S: Final = 150.0


class Place(NamedTuple):
    broker: Broker
    authority: Authority
    directory: Path

    def scram(self, mechanism: str, password: str = PASSWORD) -> Mapping[str, str]:
        return {
            "bootstrap.servers": str(self.broker.addresses["SASL_SSL"]),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.trust),
            "sasl.mechanisms": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }

    def certificate(self, identity: Path) -> Mapping[str, str]:
        return {
            "bootstrap.servers": str(self.broker.addresses["SSL"]),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.trust),
            "ssl.certificate.location": str(identity),
            "ssl.key.location": str(identity),
        }

    async def ran(self, configs: Mapping[str, str], *options: str, given: str = "") -> tuple[int, str, str]:
        """The exit status, the output, and what it complains of."""
        file = self.directory / "kcat.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in configs.items()))
        command = ["kcat", "-F", str(file), *options]

        def work() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)

        done = await asyncio.to_thread(work)
        return done.returncode, done.stdout, done.stderr

    async def is_refused(self, configs: Mapping[str, str], words: str) -> None:
        """On a busy machine its seconds may be over before it is told why: then it asks again."""
        said = ""
        while words not in said:
            status, _, said = await self.ran(configs, "-L", "-m", "5")
            assert status != 0


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Clients of SASL_SSL log in, those of SSL show a certificate."""
    authority = Authority.made(tmp_path / "certificates")
    configs = {
        "listeners": f"{SASL['listeners']},SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("127.0.0.1")),
        "ssl.truststore.location": str(authority.trust),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    async with asyncio.timeout(150), sasl_broker(tmp_path, configs) as broker:
        await asyncio.to_thread(make_users, broker, alice=PASSWORD)
        yield Place(broker, authority, tmp_path)


async def writes_and_reads(place: Place, configs: Mapping[str, str], topic: str) -> None:
    assert (await place.ran(configs, "-P", "-t", topic, "-K", ":", given="a:1\nb:2\n"))[0] == 0
    read = await place.ran(configs, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k=%s\n")
    assert (read[0], sorted(read[1].split())) == (0, ["a=1", "b=2"])
    assert f'topic "{topic}" with 1 partitions' in (await place.ran(configs, "-L"))[1]


async def test_scram_over_tls(place: Place) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        await writes_and_reads(place, place.scram(mechanism), mechanism)
    wrong = place.scram("SCRAM-SHA-512", "wonderland")
    await place.is_refused(wrong, "Authentication failed: user name or password is wrong")


async def test_a_certificate(place: Place) -> None:
    await writes_and_reads(place, place.certificate(place.authority.issue(common_name="alice")), "by-certificate")
    stranger = Authority.made(place.directory / "stranger").issue(common_name="alice")
    for identity in (stranger, place.authority.issue(common_name="late", valid=OVER)):
        await place.is_refused(place.certificate(identity), "alert")
