"""The configs of SASL on listeners, by Kafka's names. Sources: Kafka's BrokerSecurityConfigs and SaslConfigs."""

from __future__ import annotations

from typing import Final

from headrace.metadata.config_defs import ConfigDef, ConfigType

SASL_DEFS: Final = (
    ConfigDef(
        key="connection.failed.authentication.delay.ms",
        type=ConfigType.INT,
        default="100",
        low=0,
        dynamic=False,
        doc="How long the answer to a failed authentication is delayed. The connection is closed after it.",
    ),
    ConfigDef(
        key="connections.max.reauth.ms",
        type=ConfigType.LONG,
        default="0",
        dynamic=False,
        doc="Time after which a client of a SASL listener has to authenticate again, or is closed (KIP-368); 0: it has "
        "not to. A mechanism may have one of its own: listener.name.NAME.MECHANISM.connections.max.reauth.ms.",
    ),
    ConfigDef(
        key="sasl.enabled.mechanisms",
        type=ConfigType.LIST,
        default="GSSAPI",
        doc="Mechanisms by which clients of SASL listeners authenticate: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER. GSSAPI, Kafka's default, is not served.",
    ),
    ConfigDef(
        key="sasl.server.max.receive.size",
        type=ConfigType.INT,
        default="524288",
        low=1_024,
        dynamic=False,
        doc="Largest frame of a client that is not authenticated.",
    ),
)
JAAS: Final = ConfigDef(
    key="sasl.jaas.config",
    type=ConfigType.PASSWORD,
    default=None,
    dynamic=False,
    doc="The login module of a mechanism, and for PLAIN its users: "
    'listener.name.NAME.plain.sasl.jaas.config=CLASS required user_alice="secret";',
)
"""Set for one mechanism alone."""
