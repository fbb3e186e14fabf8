"""Ed25519 keys in NATS's format (nkeys), and the tokens (JWTs) that they sign. Wraps `nkeys` and PyNaCl.

A seed is secret; elsewhere a key is named by its public key. An HTTP key is a user's seed in a form that fits into a request header:
`mk-` and 43 characters of base64url, its 32 bytes. A gateway also needs the user's token, which is public.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import IntEnum
from typing import Any

import nkeys
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from common.errors import Fatal

ALGORITHM = b'{"typ":"JWT","alg":"ed25519-nkey"}'

Claims = dict[str, Any]
"""`Any`: a token's content is JSON, as NATS defines it."""


class Kind(IntEnum):
    """Kind of a key; the first letter of its public key shows it: O, A or U."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


class Seed:
    """A private key. Only `reveal` returns its text, so that no log and no traceback shows it."""

    def __init__(self, text: str) -> None:
        """Raises: Fatal if `text` is not a seed."""
        try:
            self._pair = nkeys.from_seed(bytearray(text.strip().encode()))
        except (nkeys.NkeysError, ValueError, binascii.Error, IndexError):
            raise Fatal("this is no NATS seed: one begins with S, and has 58 characters") from None
        self._text = text.strip()

    @classmethod
    def new(cls, kind: Kind) -> "Seed":
        return cls.of(kind, os.urandom(32))

    @classmethod
    def of(cls, kind: Kind, raw: bytes) -> "Seed":
        """A seed made from `raw`, the 32 bytes of an Ed25519 seed."""
        return cls(nkeys.encode_seed(raw, int(kind)).decode())

    @property
    def public(self) -> str:
        return bytes(self._pair.public_key).decode()

    def reveal(self) -> str:
        return self._text

    def raw(self) -> bytes:
        """The 32 bytes of the Ed25519 seed; the text has two bytes before them (the kind) and a checksum after them."""
        return base64.b32decode(self._text + "=" * (-len(self._text) % 8))[2:34]

    def sign(self, text: bytes) -> bytes:
        return bytes(self._pair.sign(text))

    def __repr__(self) -> str:
        return f"Seed({self.public})"


def encode(issuer: Seed, claims: Claims) -> str:
    """Encode and sign a token as `issuer`."""
    content = {"iss": issuer.public, **claims}
    identity = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    content["jti"] = base64.b32encode(identity).rstrip(b"=").decode()
    signed = f"{_base64(ALGORITHM)}.{_base64(json.dumps(content, separators=(',', ':')).encode())}"
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def decode(token: str) -> Claims:
    """Decode a token whose signature is that of the issuer it names; the caller decides whether to trust that issuer.

    Raises: ValueError for any other text.
    """
    try:
        signed, _, signature = token.strip().rpartition(".")
        claims: Claims = json.loads(_raw(signed.partition(".")[2]))
        verifier = VerifyKey(base64.b32decode(claims["iss"] + "=" * (-len(claims["iss"]) % 8))[1:33])
        verifier.verify(signed.encode(), _raw(signature))
    except (ValueError, KeyError, TypeError, BadSignatureError) as error:
        raise ValueError(f"this is no signed token of NATS: {type(error).__name__}") from None
    return claims


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


START = "mk-"
FORM = re.compile(START + r"[A-Za-z0-9_-]{43}")


def http_key(seed: Seed) -> str:
    """The HTTP key of a seed; as secret as the seed."""
    return START + urlsafe_b64encode(seed.raw()).rstrip(b"=").decode()


def seed_of(text: str) -> Seed | None:
    """Seed of an HTTP key; None if `text` is not one. Each seed has exactly one text."""
    if FORM.fullmatch(text) is None:
        return None
    seed = Seed.of(Kind.USER, urlsafe_b64decode(text.removeprefix(START) + "="))
    return seed if http_key(seed) == text else None


def digest_of(text: str) -> str:
    """SHA-256 of the key's text in hexadecimal, which is stored in place of the key. A text of 256 random bits cannot be found by trial."""
    return hashlib.sha256(text.encode()).hexdigest()
