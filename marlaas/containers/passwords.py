"""A deployment with containers where clients with NATS's password may do everything: deploy/passwords, for one release."""

from collections.abc import Mapping

from common.runtime.exposure import KNOWN_PASSWORDS, is_loopback
from marlaas.containers.preparation import own_nats_folders
from marlaas.containers.volumes import Volumes
from marlaas.stack import keys
from marlaas.stack.state_files import StackError

PASSWORD_SETTINGS = ("NATS_PASSWORD", "POSTGRES_PASSWORD", "POSTGRES_OWNER_PASSWORD", "POSTGRES_APP_PASSWORD")


def prepare_without_keys(volumes: Volumes, settings: Mapping[str, str]) -> None:
    """Give NATS its folders; the compose file has it ask for a password. `settings`: those of `.env`.

    Raises: StackError when the streams belong to keys, or NATS is published beyond loopback with a password of this project's files.
    """
    if keys.belongs_to_accounts(volumes.nats):
        raise StackError("the volume `nats` holds streams that belong to keys; remove deploy/passwords/compose.yml from COMPOSE_FILE")
    known = [name for name in PASSWORD_SETTINGS if settings.get(name, "") in KNOWN_PASSWORDS | {""}]
    host = settings.get("NATS_ADDRESS", "").rpartition(":")[0]
    if known and not is_loopback(host.strip("[]")):
        raise StackError(f"NATS_ADDRESS is not on loopback, and everybody knows these passwords; set in .env: {', '.join(known)}")
    own_nats_folders(volumes)
