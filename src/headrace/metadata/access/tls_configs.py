"""The configs of TLS on listeners, by Kafka's names. Source: Kafka's SslConfigs and BrokerSecurityConfigs.

Each may be set for one listener, as `listener.name.NAME.ssl.*` (`listener_configs`). Files are read again when they
change, so none of these is changed while a broker runs.
"""

from __future__ import annotations

from typing import Final

from headrace.metadata.config_defs import ConfigDef, ConfigType


def _def(key: str, default: str | None, doc: str, type_: ConfigType = ConfigType.STRING, **rest: object) -> ConfigDef:
    return ConfigDef(key=key, type=type_, default=default, dynamic=False, doc=doc, **rest)  # type: ignore[arg-type]  # a table's short form


TLS_DEFS: Final = (
    _def(
        "ssl.cipher.suites",
        "",
        "Cipher suites of TLS, by Java's names or OpenSSL's; empty: the usual ones. All suites of TLS 1.3 are named, "
        "or none.",
        ConfigType.LIST,
    ),
    _def(
        "ssl.client.auth",
        "none",
        "Whether clients of SSL listeners show a certificate: required, requested (who shows none is ANONYMOUS) or "
        "none. It holds for a SASL_SSL listener only where it is set for that one.",
        values=("required", "requested", "none"),
    ),
    _def(
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are spoken.",
        ConfigType.LIST,
        values=("TLSv1.2", "TLSv1.3"),
    ),
    _def(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether a broker checks that another one's certificate is for the name or address that it has connected to: "
        "https, or empty for no.",
        values=("https", "HTTPS", ""),
    ),
    _def("ssl.key.password", None, "Password of an encrypted private key.", ConfigType.PASSWORD),
    _def(
        "ssl.keystore.certificate.chain",
        None,
        "The broker's certificate in PEM, and those between it and the CA; with ssl.keystore.key.",
        ConfigType.PASSWORD,
    ),
    _def("ssl.keystore.key", None, "The broker's private key in PEM.", ConfigType.PASSWORD),
    _def(
        "ssl.keystore.location",
        None,
        "A PEM file with the broker's private key, its certificate, and those between it and the CA. It is read again "
        "when it changes.",
    ),
    _def("ssl.keystore.type", "JKS", "PEM. Java's key stores are not read: a file has to be in PEM all the same."),
    _def(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How the name of a client's certificate becomes its principal (KIP-371): RULE:pattern/replacement/[LU], or "
        "DEFAULT, the name as it is.",
    ),
    _def(
        "ssl.truststore.certificates",
        None,
        "Certificates of the authorities that clients' certificates come from, in PEM.",
        ConfigType.PASSWORD,
    ),
    _def(
        "ssl.truststore.location",
        None,
        "A PEM file with the certificates of these authorities. It is read again when it changes.",
    ),
    _def("ssl.truststore.type", "JKS", "PEM, as for ssl.keystore.type."),
)
