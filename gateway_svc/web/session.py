"""Sessions of browsers. The gateway stores none: the cookie is the encrypted key, so any replica with the same secret accepts it.

A session ends after its time, and with its key: every request is authenticated by the key in the cookie.
"""

import base64
import hashlib
import hmac
import secrets
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LASTS_S = 12 * 3600
NONCE = 12
MAX_COOKIE = 1024
_USE = b"marlaas dashboard session 1"


class Sessions:
    """Encrypts keys into cookies. `secret`: shared by all replicas of a deployment, at least 128 random bits; None: random for this
    process, so that users log in again after a restart."""

    def __init__(self, secret: str | None) -> None:
        root = secret.encode() if secret is not None else secrets.token_bytes(32)
        self.is_shared = secret is not None
        self._cipher = AESGCM(hmac.digest(root, b"seal", hashlib.sha256))
        self._csrf = hmac.digest(root, b"csrf", hashlib.sha256)

    def seal(self, key: str, now_s: float) -> str:
        """Cookie value: the key and its expiry time, encrypted and authenticated (AES-256-GCM)."""
        nonce = secrets.token_bytes(NONCE)
        sealed = self._cipher.encrypt(nonce, struct.pack(">d", now_s + LASTS_S) + key.encode(), _USE)
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, cookie: str, now_s: float) -> str | None:
        """Decrypt a cookie to its key; None if it is invalid or expired."""
        if len(cookie) > MAX_COOKIE or not cookie.isascii():
            return None
        try:
            found = base64.b64decode(cookie + "=" * (-len(cookie) % 4), altchars=b"-_", validate=True)
            content = self._cipher.decrypt(found[:NONCE], found[NONCE:], _USE)
        except (ValueError, InvalidTag):
            return None
        (ends_s,) = struct.unpack(">d", content[:8])
        return content[8:].decode() if now_s < ends_s else None

    def csrf_token(self, cookie: str) -> str:
        """CSRF token for this session's forms, which pages of other origins cannot read. `cookie`: empty on a server without keys."""
        return hmac.new(self._csrf, cookie.encode(), hashlib.sha256).hexdigest()

    def is_token_of(self, cookie: str, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token(cookie).encode(), token.encode())
