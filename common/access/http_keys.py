"""HTTP keys: the seed of a NATS user in a form that fits into the header of a request.

`mk-` and 43 characters of base64url, which are the 32 bytes of the seed. What a gateway needs beside it, the user's token, is public.
"""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

from common.access.keys import Kind, Seed

START = "mk-"
FORM = re.compile(START + r"[A-Za-z0-9_-]{43}")


def http_key(seed: Seed) -> str:
    """The key's text; secret, as the seed is."""
    return START + urlsafe_b64encode(seed.raw()).rstrip(b"=").decode()


def seed_of(text: str) -> Seed | None:
    """None for a text that is no key. Each seed has one text only."""
    if FORM.fullmatch(text) is None:
        return None
    seed = Seed.of(Kind.USER, urlsafe_b64decode(text.removeprefix(START) + "="))
    return seed if http_key(seed) == text else None


def digest_of(text: str) -> str:
    """SHA-256 of the key's text, in hexadecimal: what is stored of it. A text of 256 random bits cannot be found by trying."""
    return hashlib.sha256(text.encode()).hexdigest()
