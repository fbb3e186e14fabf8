"""Who a benchmark is on a stack with keys: its operator, and a user of the services' account that measures or stands in for services."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from common.access.folder import credentials_path, issue_key, open_folder
from common.access.rows import Permissions
from marlaas.client import Client
from marlaas.stack.state_files import Stack

MEASURING = "bench"
EVERYTHING = Permissions((">",), (">",), "_INBOX")


def operator(stack: Stack) -> AbstractAsyncContextManager[Client]:
    """A client that acts for every tenant."""
    return Client.connect(stack.nats_url, creds=stack.operator_key)


def measuring(stack: Stack) -> tuple[str, Path]:
    """NATS's address, and the creds file of `measuring_key`."""
    return stack.nats_url, measuring_key(keys_of(stack))


def measuring_key(keys: Path) -> Path:
    """Creds file of a user of the services' account who may do everything there. `keys`: folder of the signing keys."""
    path = credentials_path(keys, MEASURING)
    issue_key(path, open_folder(keys).services, MEASURING, EVERYTHING)
    return path


def keys_of(stack: Stack) -> Path:
    """Folder of the signing keys of a stack that has some."""
    assert stack.operator_key is not None
    return stack.operator_key.parent.parent
