"""Secrets of webhooks: signatures of messages, and encryption in the database with the deployment's sealing key. Pure.

Signatures are those of https://www.standardwebhooks.com. To seal a secret, which is as long as one output of HMAC-SHA256, it is XORed with
an HMAC of the webhook and a single-use nonce under the sealing key: a one-time pad from a pseudo-random function. A second HMAC
authenticates the result.
"""

import base64
import hashlib
import hmac
import secrets

from common.messages.tenancy.webhooks import SECRET_BYTES, SECRET_PREFIX


def key_of(secret: str) -> bytes:
    """Bytes of a secret `whsec_…`."""
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def signature_headers(key: bytes, message: str, at_s: float, body: bytes) -> dict[str, str]:
    """Headers of Standard Webhooks. `message`: its id, the same in all attempts. `at_s`: Unix time of this attempt."""
    sent = str(int(at_s))
    digest = hmac.new(key, f"{message}.{sent}.".encode() + body, hashlib.sha256).digest()
    return {"webhook-id": message, "webhook-timestamp": sent, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


NONCE_BYTES = 16


class Sealed(Exception):
    """The secret was sealed by another key, or is damaged."""


def seal(sealing_key: bytes, webhook: tuple[str, str], secret: bytes) -> bytes:
    """Encrypt a secret of SECRET_BYTES bytes. `webhook`: tenant and name, to which the result is bound."""
    assert len(secret) == SECRET_BYTES
    nonce = secrets.token_bytes(NONCE_BYTES)
    hidden = _combined(secret, _pad(sealing_key, b"hide", webhook, nonce))
    return nonce + hidden + _pad(sealing_key, b"check", webhook, nonce + hidden)


def unseal(sealing_key: bytes, webhook: tuple[str, str], sealed: bytes) -> bytes:
    """Decrypt a sealed secret. Raises: Sealed."""
    nonce, hidden, check = sealed[:NONCE_BYTES], sealed[NONCE_BYTES : NONCE_BYTES + SECRET_BYTES], sealed[NONCE_BYTES + SECRET_BYTES :]
    if not hmac.compare_digest(check, _pad(sealing_key, b"check", webhook, nonce + hidden)):
        raise Sealed
    return _combined(hidden, _pad(sealing_key, b"hide", webhook, nonce))


def _pad(sealing_key: bytes, purpose: bytes, webhook: tuple[str, str], of: bytes) -> bytes:
    text = b"\x00".join([b"marlaas-webhook", purpose, *(part.encode() for part in webhook), of.hex().encode()])
    return hmac.new(sealing_key, text, hashlib.sha256).digest()


def _combined(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
