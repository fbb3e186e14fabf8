"""A deployment with containers where clients with NATS's password may do everything: deploy/passwords, for one release."""

from collections.abc import Mapping

from common.runtime.exposure import KNOWN_PASSWORDS, is_loopback
from marlaas.containers.preparation import own_nats_folders
from marlaas.containers.volumes import Volumes, publish
from marlaas.stack import keys
from marlaas.stack.state_files import StackError

PASSWORD_SETTINGS = ("NATS_PASSWORD", "POSTGRES_PASSWORD", "POSTGRES_OWNER_PASSWORD", "POSTGRES_APP_PASSWORD")
ACCESS = """\
authorization {
  user: $NATS_USER
  password: $NATS_PASSWORD
  timeout: 5               # seconds; a host that is starting everything at once is slow
}
"""


def prepare_without_keys(volumes: Volumes, settings: Mapping[str, str]) -> None:
    """Have NATS ask for a password. `settings`: those of `.env`.

    Raises: StackError when the streams belong to keys, or NATS is published beyond loopback with a password of this project's files.
    """
    if keys.belongs_to_accounts(volumes.nats):
        raise StackError("the volume `nats` holds streams that belong to keys; remove deploy/passwords/compose.yml from COMPOSE_FILE")
    known = [name for name in PASSWORD_SETTINGS if settings.get(name, "") in KNOWN_PASSWORDS | {""}]
    host = settings.get("NATS_ADDRESS", "").rpartition(":")[0]
    if known and not is_loopback(host.strip("[]")):
        raise StackError(f"NATS_ADDRESS is not on loopback, and everybody knows these passwords; set in .env: {', '.join(known)}")
    publish(volumes.nats_access / "nats.conf", ACCESS, volumes.nats_user)
    own_nats_folders(volumes)
