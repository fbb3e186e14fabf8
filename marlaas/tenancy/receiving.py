"""Where a new key goes: a creds file, or the text of an HTTP key, which is shown or written to a file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.access.credentials import read_credentials, refuse_readable_by_others, write_credentials, write_secret
from common.access.folder import SigningKeys
from common.access.keys import Seed, http_key
from common.client_api.errors import ClientError
from common.errors import Fatal


@dataclass(frozen=True)
class Receiver:
    """The holder's side of a new key."""

    file: Path | None
    """None: an HTTP key is shown."""
    show: Callable[[str], None]

    def give(self, seed: Seed, token: str, *, is_http: bool) -> None:
        if self.file is None:
            self.show(http_key(seed))
        elif is_http:
            write_secret(self.file, http_key(seed) + "\n")
        else:
            write_credentials(self.file, token, seed)

    def refuse_unfit(self, signing: SigningKeys, tenant: str, name: str, *, is_http: bool) -> None:
        """Check the file before a key is made.

        Raises: ClientError when a key for NATS has no file, or the file has no folder, or is there and no interrupted command wrote it.
        """
        if self.file is None:
            if is_http:
                return
            raise ClientError(f"key '{name}' is one for NATS, which is written to a file; name one with --to")
        if not self.file.parent.is_dir():
            raise ClientError(f"there is no folder {self.file.parent} for the key; make it first")
        pending = signing.pending(tenant, name) if signing.is_pending(tenant, name) else None
        if self.file.exists() and (pending is None or not _holds(self.file, pending, is_http=is_http)):
            raise ClientError(f"{self.file} is there already; name another file, so that no key is lost")


def _holds(file: Path, seed: Seed, *, is_http: bool) -> bool:
    try:
        if not is_http:
            return read_credentials(file).public == seed.public
        refuse_readable_by_others(file)
        return file.read_text().strip() == http_key(seed)
    except (Fatal, OSError, UnicodeDecodeError):
        return False
