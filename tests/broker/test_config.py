"""The start options of a broker: addresses that others can connect to."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.config import BrokerConfig
from headrace.broker.listeners import INSECURE

DATA = Path("data")
EVERYWHERE = ("0.0.0.0", "::")


@pytest.mark.parametrize("host", EVERYWHERE)
def test_nobody_is_told_a_wildcard(host: str) -> None:
    with pytest.raises(UsageError, match="add --advertise HOST:PORT"):
        BrokerConfig(data=DATA, host=host).check_addresses()
    with pytest.raises(UsageError, match="is no address that clients can connect to"):
        BrokerConfig(data=DATA, advertised_host=host).check_addresses()
    BrokerConfig(data=DATA, host=host, advertised_host="a.example.org", configs={INSECURE: "true"}).check_addresses()
    BrokerConfig(data=DATA).check_addresses()


@pytest.mark.parametrize(
    ("host", "advertised", "joins", "told"),
    [
        ("127.0.0.1", None, ("10.0.0.1",), True),
        ("127.0.0.1", None, ("127.0.0.1", "10.0.0.1"), True),
        ("0.0.0.0", "localhost", ("a.example.org",), True),
        ("127.0.0.1", "10.0.0.2", ("10.0.0.1",), False),
        ("10.0.0.2", None, ("10.0.0.1",), False),
        ("::1", None, ("localhost", "127.0.0.1"), False),
        ("127.0.0.1", None, (), False),
    ],
)
def test_who_joins_others_on_another_machine_is_not_to_be_told_as_theirs(
    host: str, advertised: str | None, joins: tuple[str, ...], told: bool
) -> None:
    others = tuple(Address(each, 9092) for each in joins)
    config = BrokerConfig(data=DATA, host=host, advertised_host=advertised, join=others)
    assert config.is_told_as_loopback is told
