"""Configs of a broker's listeners: a part of the table of configs. Source: Kafka's SocketServerConfigs."""

from __future__ import annotations

from typing import Final

from headrace.metadata.config_defs import ConfigDef, ConfigType

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

ENDPOINT_DEFS: Final = (
    ConfigDef(
        key="advertised.listeners",
        type=ConfigType.LIST,
        default=None,
        dynamic=False,
        doc="The addresses that clients and other brokers are told, as NAME://HOST:PORT. A listener that is not among "
        "them is not told. Null: those of listeners, or of --advertise. Port 0 is the listener's own.",
    ),
    ConfigDef(
        key="headrace.insecure.listeners",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether the broker starts with a listener that is reached from other machines and asks nobody who it is. "
        "--insecure sets it.",
    ),
    ConfigDef(
        key="inter.broker.listener.name",
        type=ConfigType.STRING,
        default=None,
        dynamic=False,
        doc="The listener by which brokers reach each other. It has to be among advertised.listeners. Null: the one "
        "named after security.inter.broker.protocol, or the only one.",
    ),
    ConfigDef(
        key="listener.security.protocol.map",
        type=ConfigType.STRING,
        default="SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        dynamic=False,
        doc="The security protocol of each listener, as NAME:PROTOCOL. A listener that is named after a protocol has "
        "it by default.",
    ),
    ConfigDef(
        key="listeners",
        type=ConfigType.LIST,
        default="PLAINTEXT://:9092",
        dynamic=False,
        doc="Where the broker listens, as NAME://HOST:PORT. Without it, --listen gives one listener PLAINTEXT. No host "
        "means every address of the machine, port 0 a free one.",
    ),
    ConfigDef(
        key="security.inter.broker.protocol",
        type=ConfigType.STRING,
        default="PLAINTEXT",
        dynamic=False,
        values=_PROTOCOLS,
        doc="The protocol between brokers, which is also the name of its listener. Only one of this and "
        "inter.broker.listener.name may be set.",
    ),
)
