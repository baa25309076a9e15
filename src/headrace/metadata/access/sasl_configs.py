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
        key="sasl.oauthbearer.allow.unverified.audience",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether tokens of any audience count, where sasl.oauthbearer.expected.audience is empty.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.allow.unverified.issuer",
        type=ConfigType.BOOLEAN,
        default="false",
        dynamic=False,
        doc="Whether tokens of any issuer count, where sasl.oauthbearer.expected.issuer is not set.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.client.credentials.client.id",
        type=ConfigType.STRING,
        default=None,
        dynamic=False,
        doc="The name by which this broker asks sasl.oauthbearer.token.endpoint.url for its own token.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.client.credentials.client.secret",
        type=ConfigType.PASSWORD,
        default=None,
        dynamic=False,
        doc="The secret that goes with sasl.oauthbearer.client.credentials.client.id.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.clock.skew.seconds",
        type=ConfigType.INT,
        default="30",
        dynamic=False,
        low=0,
        high=3_600,
        doc="Seconds by which the clock of a token's issuer may differ from this broker's.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.expected.audience",
        type=ConfigType.LIST,
        default="",
        dynamic=False,
        doc="Audiences, of which a token has to name one.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.expected.issuer",
        type=ConfigType.STRING,
        default=None,
        dynamic=False,
        doc="The issuer that a token has to name.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        type=ConfigType.LONG,
        default="3600000",
        dynamic=False,
        low=1,
        doc="Time after which the issuer's public keys are read again.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        type=ConfigType.LONG,
        default="10000",
        dynamic=False,
        low=1,
        doc="Longest time before a failed reading of the keys is tried again. It is also the shortest time between "
        "two readings that tokens with an unknown key cause.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        type=ConfigType.LONG,
        default="100",
        dynamic=False,
        low=1,
        doc="Time before a failed reading of the keys is tried again; it doubles.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.jwks.endpoint.url",
        type=ConfigType.STRING,
        default=None,
        dynamic=False,
        doc="Where the issuer's public keys (JWKS) are: https://, file://, or http:// on this machine.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.scope",
        type=ConfigType.STRING,
        default=None,
        dynamic=False,
        doc="The scope of the token that this broker asks for.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.scope.claim.name",
        type=ConfigType.STRING,
        default="scope",
        dynamic=False,
        doc="The claim of a token that has its scope.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.sub.claim.name",
        type=ConfigType.STRING,
        default="sub",
        dynamic=False,
        doc="The claim of a token that has the user's name.",
    ),
    ConfigDef(
        key="sasl.oauthbearer.token.endpoint.url",
        type=ConfigType.STRING,
        default=None,
        dynamic=False,
        doc="Where this broker has its own token from, if brokers log in at each other by OAUTHBEARER. It is https://, "
        "http:// on this machine, or file:///PATH of a token that somebody keeps fresh.",
    ),
    ConfigDef(
        key="sasl.mechanism.inter.broker.protocol",
        type=ConfigType.STRING,
        default="GSSAPI",
        dynamic=False,
        doc="The mechanism by which brokers log in at each other, where inter.broker.listener.name is a SASL listener. "
        "The name and the password are those of the listener's sasl.jaas.config for it. GSSAPI, Kafka's default, is "
        "not known here.",
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
