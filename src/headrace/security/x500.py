"""The subject of a certificate as a text, in the form that Java gives it (RFC 2253), and so Kafka.

Promises: the text equals that of Java's X500Principal.getName(). Reads DER alone, and never beyond its end. Never does:
verify a certificate (OpenSSL has). Sources: RFC 2253, X.690, and Java's sun.security.x509.AVA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.base.errors import CorruptData

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
"""Tags of strings that Java writes as text: UTF8, Printable, T61, IA5, General, Universal and BMP."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = ',=+<>#;"\\'


def subject_of(certificate: bytes) -> bytes:
    """The subject's name, as DER, of an X.509 certificate in DER. Raises CorruptData."""
    _, body, _ = _element(certificate, 0, _SEQUENCE)
    _, signed, _ = _element(body, 0, _SEQUENCE)
    at = 0
    if signed[:1] == bytes([_VERSION]):
        _, _, at = _element(signed, 0)
    for _ in range(4):  # serial number, signature algorithm, issuer, validity
        _, _, at = _element(signed, at)
    _, _, end = _element(signed, at, _SEQUENCE)
    return signed[at:end]


def name_of(subject: bytes) -> str:
    """The text of a name in DER. Raises CorruptData."""
    _, names, _ = _element(subject, 0, _SEQUENCE)
    parts = ["+".join(_pair(pair) for pair in _elements(part, _SEQUENCE)) for part in _elements(names, _SET)]
    return ",".join(reversed(parts))


def _pair(pair: bytes) -> str:
    _, oid, at = _element(pair, 0, _OID)
    tag, value, end = _element(pair, at)
    kind = _dotted(oid)
    keyword = _KEYWORDS.get(kind)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or kind}=#{pair[at:end].hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    escaped = "".join("\\" + char if char in _ESCAPED else "\\00" if char == "\0" else char for char in text)
    inner = escaped.strip(" \r")
    if not inner:
        return "".join("\\" + char for char in escaped)
    before, _, after = escaped.partition(inner)
    return "".join(("".join("\\" + char for char in before), inner, "".join("\\" + char for char in after)))


def _dotted(oid: bytes) -> str:
    numbers, number = list[int](), 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise CorruptData("a certificate names an attribute without a type")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(body: bytes, tag: int) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        _, element, at = _element(body, at, tag)
        yield element


def _element(text: bytes, at: int, wanted: int | None = None) -> tuple[int, bytes, int]:
    """Tag and body of the element at this place, and where the next one begins. Raises CorruptData."""
    head = text[at : at + 2]
    if len(head) < 2 or (wanted is not None and head[0] != wanted):
        raise CorruptData("a certificate is not written in DER")
    begin, size = at + 2, head[1]
    if size >= 0x80:
        begin, size = begin + (size & 0x7F), int.from_bytes(text[begin : begin + (size & 0x7F)])
    if begin + size > len(text):
        raise CorruptData("a certificate is cut")
    return head[0], text[begin : begin + size], begin + size
