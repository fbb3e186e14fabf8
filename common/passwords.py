"""Passwords of PostgreSQL's roles: generated, stored in a libpq password file, hashed before they are sent.

A password file has a line `host:port:database:role:password` for each role; `passfile` in a database's address names it. So an
address contains no secret, and may appear in arguments, logs and files that others read. libpq ignores a file that others can read.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

ITERATIONS = 4096
"""Rounds of the hash, PostgreSQL's default: generated passwords are random bits, for which more rounds add nothing."""


def new_password() -> str:
    """A password of 192 random bits, in letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(24)


def scram_verifier(password: str) -> str:
    """The verifier that PostgreSQL stores for a password. It cannot be used to log in, so the server's logs cannot leak the password.

    Source: RFC 5803, and PostgreSQL's `pg_authid.rolpassword`.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${ITERATIONS}:{_base64(salt)}${_base64(stored)}:{_base64(server)}"


def read_passwords(path: Path) -> dict[str, str]:
    """Passwords by role, from every line for all hosts and databases; empty if there is no file."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    fields = [line.split(":") for line in lines if line and not line.startswith("#")]
    return {role: password for *_, role, password in fields}


def write_passwords(path: Path, passwords: Mapping[str, str]) -> None:
    """Replace the file, readable only by this user, in a folder with mode 0700."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123  Path.open takes no mode of the file
        file.write("".join(f"*:*:*:{role}:{password}\n" for role, password in passwords.items()))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _base64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()
