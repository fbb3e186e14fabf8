"""Creds files: the token and the seed of one user, in the format that every NATS client reads; and the same in memory."""

import json
import os
import re
import shlex
import stat
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from pathlib import Path

from common.access.claims import ROLE_TAG, TENANT_TAG
from common.access.keys import Seed
from common.access.services import INBOX
from common.errors import Fatal

FORM = """\
-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

************************* IMPORTANT *************************
The holder of this file has its rights. Keep it secret.
Answers reach it below one subject only: nats --inbox-prefix {inbox}

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
TOKEN = re.compile(r"BEGIN NATS USER JWT-----\s+([\w-]+\.[\w-]+\.[\w-]+)\s")
SEED = re.compile(r"BEGIN USER NKEY SEED-----\s+(SU[A-Z2-7]{56})\s")


@dataclass(frozen=True)
class Held:
    """A token and its seed in memory."""

    token: str = field(repr=False)
    seed: Seed

    def text(self) -> str:
        """Content of a creds file with this token and seed; secret."""
        return FORM.format(token=self.token, seed=self.seed.reveal(), inbox=_described(self, self.token).inbox)


@dataclass(frozen=True)
class Credentials:
    """A key as its token describes it. The secret part stays in `source`: a creds file, or memory."""

    source: Path | Held
    name: str
    public: str
    role: str | None
    """None for a service's key."""
    tenant: str | None
    inbox: str
    """Prefix of the reply subjects to which the key may subscribe."""
    end_s: int | None
    """Unix time at which the key expires; None for never."""

    def __str__(self) -> str:
        return f"key '{self.name}' ({self.role} of '{self.tenant}')" if self.tenant else f"key '{self.name}'"


def write_credentials(path: Path, token: str, seed: Seed) -> None:
    """Write or replace a creds file that only its owner can read."""
    write_secret(path, Held(token, seed).text())


def write_secret(path: Path, text: str) -> None:
    """Write a file atomically, with mode 0600 from its first byte."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.unlink(missing_ok=True)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as written:
        written.write(text)
        written.flush()
        os.fsync(file)
    temporary.replace(path)


def refuse_readable_by_others(path: Path) -> None:
    """Raises: Fatal, with the command that corrects it, if other users can read `path`, or it does not exist."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise Fatal(f"there is no readable key in {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        right = "700" if stat.S_ISDIR(mode) else "600"
        raise Fatal(f"{path} can be read by other users of this machine, and holds a secret; next: chmod {right} {shlex.quote(str(path))}")


def read_credentials(path: Path) -> Credentials:
    """Read a creds file. Raises: Fatal if the file is not a creds file, or others can read it."""
    refuse_readable_by_others(path)
    try:
        text = path.read_text()
        token, seed = TOKEN.search(text), SEED.search(text)
        assert token is not None and seed is not None
        found = _described(path, token[1])
    except OSError as error:
        raise Fatal(f"the key {path} cannot be read: {error.strerror}") from None
    except (AssertionError, ValueError, KeyError, TypeError):
        raise Fatal(f"{path} is no creds file of NATS; `marlaas keys create` writes one") from None
    if Seed(seed[1]).public != found.public:
        raise Fatal(f"{path}: its seed is not that of its token; was it edited? Ask for another key")
    return found


def credentials_of(token: str, seed: Seed) -> Credentials:
    """Credentials in memory. Raises: ValueError if `token` is not a token, or does not belong to this seed."""
    try:
        found = _described(Held(token, seed), token)
    except (ValueError, KeyError, TypeError, IndexError):
        raise ValueError("this is no token of NATS") from None
    if seed.public != found.public:
        raise ValueError(f"the token is of {found.public}, the seed of {seed.public}")
    return found


def _described(source: Path | Held, token: str) -> Credentials:
    """Credentials from the token's claims; its signature is not verified."""
    claims = json.loads(_part(token.split(".")[1]))
    tags: list[str] = claims["nats"].get("tags", [])
    inboxes = [subject for subject in claims["nats"]["sub"]["allow"] if subject.startswith(INBOX)]
    return Credentials(
        source=source,
        name=str(claims["name"]),
        public=str(claims["sub"]),
        role=_tag(tags, ROLE_TAG),
        tenant=_tag(tags, TENANT_TAG),
        inbox=inboxes[0].removesuffix(".>") if inboxes else INBOX,
        end_s=claims.get("exp"),
    )


def _tag(tags: list[str], start: str) -> str | None:
    return next((tag.removeprefix(start) for tag in tags if tag.startswith(start)), None)


def _part(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
