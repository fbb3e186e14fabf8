"""Keys of a one-machine stack: their folder, NATS's configuration, and the owner of its streams."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from common.access.folder import holds_keys, issue_service_keys, open_folder, open_or_make, server_configuration
from common.access.services import Deployment
from common.messages import FILE_FAMILY, OWN_FAMILY
from marlaas.stack import servers
from marlaas.stack.state_files import StackError

EVERYBODY = "$G"
"""Name that NATS gives the account of a server without accounts."""
ACCOUNT = re.compile(r"^A[A-Z2-7]{55}$")


def folder_of(data: Path, *, given: Path | None, last: Path | None, without: bool) -> Path | None:
    """Folder of the signing keys of the stack in `data`; None if NATS refuses no client.

    `given`: named by the user. `last`: that of the last run. `without`: the user wants no keys. Default: `keys` in `data`.
    Raises: StackError if the streams belong to keys that are not in that folder, or to none; Fatal if others can read it.
    """
    nats = data / "nats"
    folder = None if without else given or last or data / "keys"
    if belongs_to_accounts(nats) and folder is None:
        raise StackError(f"the streams in {nats} belong to keys, and are not there without them; start without --open")
    if folder is not None and not belongs_to_accounts(nats) and (_accounts(nats) / EVERYBODY).is_dir():
        raise StackError(f"the streams in {nats} were made without keys, and are not there with them; start with --open")
    if folder is not None and belongs_to_accounts(nats) and not has_store_of(folder, nats):
        raise StackError(
            f"the streams in {nats} belong to keys that are not in {folder}: name their folder with --keys, or restore it from its backup;"
            " `marlaas init --rekey` makes new keys"
        )
    return folder


def installed_families(hosts_file: Path | None) -> list[str]:
    """Families that an environment replica on this machine may serve, as listed by `env_svc.registry`."""
    hosted = list(tomllib.loads(hosts_file.read_text())) if hosts_file and hosts_file.exists() else []
    return [*hosted, *sorted({one.name for one in entry_points(group="marlaas.environments")}), "module", FILE_FAMILY, OWN_FAMILY]


def prepared(folder: Path, nats: Path, deployment: Deployment, *, resolver: str = "") -> str:
    """Write the services' keys; returns NATS's account configuration.

    `resolver`: the folder of tenants' tokens as NATS sees it; default: `accounts` in `nats`.
    Raises: Fatal if the folder of keys is incomplete, or others can read it.
    """
    keys = open_or_make(folder)
    issue_service_keys(keys, deployment)
    return server_configuration(keys, resolver or nats / "accounts")


def rekey(folder: Path, nats: Path) -> None:
    """Make new keys in `folder`, and transfer the streams of lost or stolen keys to them. Repeat it after an interruption.

    NATS looks for an account's streams in a folder with its name. No tenant has an account of the new keys yet.
    Raises: StackError if there are no streams of other keys; Fatal if others can read the folder.
    """
    if not belongs_to_accounts(nats):
        raise StackError(f"no streams in {nats} belong to keys that could be replaced; `marlaas up` makes keys for a new stack")
    if has_store_of(folder, nats):
        raise StackError(f"the streams in {nats} belong to the keys in {folder}; to replace these, move that folder away first")
    [before] = [path for path in _accounts(nats).iterdir() if ACCOUNT.match(path.name)]
    before.rename(_accounts(nats) / open_or_make(folder).services.public)


def has_store_of(folder: Path, nats: Path) -> bool:
    """Whether the streams belong to the services' account of the keys in `folder`; False if it has no keys."""
    return holds_keys(folder) and (_accounts(nats) / open_folder(folder).services.public).is_dir()


def belongs_to_accounts(nats: Path) -> bool:
    """Whether NATS's streams belong to an account; a server without keys would show none of them."""
    return _accounts(nats).is_dir() and any(ACCOUNT.match(path.name) for path in _accounts(nats).iterdir())


def _accounts(nats: Path) -> Path:
    """Folder that contains a folder of streams for each account."""
    return nats / servers.STORE / "jetstream"
