"""Keys of a one-machine stack: their folder, NATS's configuration, and where its streams are."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from common.access.folder import SigningKeys, holds_keys, issue_service_keys, open_folder, open_or_make, server_configuration
from common.access.services import Deployment
from common.messages import FILE_FAMILY, OWN_FAMILY
from marlaas.stack import servers
from marlaas.stack.state_files import StackError

EVERYBODY = "$G"
"""NATS's own name of the account of a server without accounts."""
ACCOUNT = re.compile(r"^A[A-Z2-7]{55}$")


def folder_of(data: Path, *, given: Path | None, last: Path | None, without: bool) -> Path | None:
    """Folder of the signing keys of the stack in `data`; None where NATS refuses no client.

    `given`: as the user names it. `last`: that of the last run. `without`: the user wants no keys. Default: `keys` in `data`, unless the
    streams there are those of a server without keys.
    Raises: StackError when the streams belong to keys that are not in that folder; Fatal when others can read it.
    """
    nats = data / "nats"
    folder = None if without else given or last or (None if belongs_to_everybody(nats) else data / "keys")
    if belongs_to_accounts(nats) and folder is None:
        raise StackError(f"the streams in {nats} belong to keys, and are not there without them; start without --open")
    if belongs_to_accounts(nats) and folder is not None and holds_keys(folder):
        if not has_store_of(folder, nats):
            raise StackError(f"the streams in {nats} belong to other keys than those in {folder}; name their folder with --keys")
    elif belongs_to_accounts(nats) and folder is not None:
        raise StackError(
            f"the streams in {nats} belong to keys, and there are none in {folder}: name their folder with --keys, or restore it from its"
            " backup; docs/tenancy.md says what to do without one"
        )
    return folder


def installed_families(hosts_file: Path | None) -> list[str]:
    """Families that an environment replica on this machine may serve, as `env_svc.registry` lists them."""
    hosted = list(tomllib.loads(hosts_file.read_text())) if hosts_file and hosts_file.exists() else []
    return [*hosted, *sorted({one.name for one in entry_points(group="marlaas.environments")}), "module", FILE_FAMILY, OWN_FAMILY]


def prepared(folder: Path, nats: Path, deployment: Deployment, *, resolver: str = "") -> str:
    """NATS's configuration about accounts, once the services' keys are written and the streams are in their account.

    `resolver`: the folder of tenants' tokens as NATS sees it; default: `accounts` in `nats`.
    Raises: Fatal when the folder of keys is not complete, or others can read it.
    """
    keys = open_or_make(folder)
    issue_service_keys(keys, deployment)
    move_streams(nats / servers.STORE / "jetstream", keys)
    return server_configuration(keys, resolver or nats / "accounts")


def move_streams(store: Path, keys: SigningKeys) -> None:
    """Give the streams of a server without accounts to the services: NATS looks for them in a folder with the account's name."""
    before, after = store / EVERYBODY, store / keys.services.public
    if before.is_dir() and not after.exists():
        before.rename(after)


def has_store_of(folder: Path, nats: Path) -> bool:
    """Whether the streams belong to the services' account of the keys in `folder`; False where it has no keys."""
    return holds_keys(folder) and (nats / servers.STORE / "jetstream" / open_folder(folder).services.public).is_dir()


def belongs_to_everybody(nats: Path) -> bool:
    """Whether NATS's streams are those of a server without keys."""
    return (nats / servers.STORE / "jetstream" / EVERYBODY).is_dir() and not belongs_to_accounts(nats)


def belongs_to_accounts(nats: Path) -> bool:
    """Whether NATS's streams are in an account, so that a server without keys would show none of them."""
    store = nats / servers.STORE / "jetstream"
    return store.is_dir() and any(ACCOUNT.match(path.name) for path in store.iterdir())
