"""Tokens and keys of an issuer, made with PyJWT and cryptography as an identity provider makes them."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER: Final = "https://issuer.test"
AUDIENCE: Final = "kafka"


class Issuer:
    """Has a key of one kind."""

    def __init__(self, algorithm: str = "ES256", key_id: str = "one") -> None:
        self.algorithm = algorithm
        self.key_id = key_id
        self.private: Any
        if algorithm.startswith(("RS", "PS")):
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            made = RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
            made = OKPAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        else:
            self.private = ec.generate_private_key(ec.SECP256R1() if algorithm == "ES256" else ec.SECP384R1())
            made = ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        self.public: dict[str, Any] = {**made, "kid": key_id, "use": "sig"}

    def token(self, *, now: float | None = None, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """A token of alice for an hour from `now`; a claim of None is left out."""
        return jwt.encode(
            claims(now, **changes),
            self.private,
            algorithm=self.algorithm,
            headers={"kid": self.key_id, **(headers or {})},
        )


def claims(now: float | None = None, **changes: Any) -> dict[str, Any]:
    at = int(time.time() if now is None else now)
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": at, "exp": at + 3_600, "scope": "read write"}
    return {claim: value for claim, value in {**usual, **changes}.items() if value is not None}


def key_set(*issuers: Issuer) -> bytes:
    return json.dumps({"keys": [each.public for each in issuers]}).encode()
