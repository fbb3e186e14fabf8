"""Signatures of messages to webhooks, as https://www.standardwebhooks.com specifies them. Pure."""

import base64
import hashlib
import hmac

from common.messages.tenancy.webhooks import SECRET_PREFIX


def key_of(secret: str) -> bytes:
    """Bytes of a secret `whsec_…`."""
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def signature_headers(key: bytes, message: str, at_s: float, body: bytes) -> dict[str, str]:
    """`message`: its id, the same in all attempts. `at_s`: Unix time of this attempt."""
    sent = str(int(at_s))
    digest = hmac.new(key, f"{message}.{sent}.".encode() + body, hashlib.sha256).digest()
    return {"webhook-id": message, "webhook-timestamp": sent, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}
