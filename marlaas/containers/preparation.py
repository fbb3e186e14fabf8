"""Keys and passwords of a deployment with containers: made at the first start, written for each service at every one."""

import os

from common.access.folder import holds_keys, open_folder
from common.access.services import Deployment
from common.passwords import new_password, read_passwords, scram_verifier, write_passwords
from common.resilience import crashpoints
from marlaas.containers.volumes import CREDS, PASSWORDS, SERVICES, Volumes, give, publish
from marlaas.stack import keys
from marlaas.stack.database_folder import ADMIN, APP, OWNER, READER
from marlaas.stack.state_files import StackError

RESOLVER = "/data/accounts"
"""Folder of tenants' tokens, as the container `nats` sees it."""


def prepare(volumes: Volumes, deployment: Deployment, *, rekey: bool = False) -> bool:
    """Make what is missing, and write to each volume what its service needs; whether keys were made. May be repeated.

    `rekey`: make new keys for a deployment whose volume of keys was lost or stolen.
    Raises: StackError, before anything is changed, when the streams are of other keys, or with `rekey` of these; Fatal when the folder of
    keys is not complete.
    """
    is_new = not holds_keys(volumes.keys)
    volumes.keys.chmod(0o700)
    if rekey:
        keys.rekey(volumes.keys, volumes.nats)
    elif keys.belongs_to_accounts(volumes.nats) and not keys.has_store_of(volumes.keys, volumes.nats):
        raise StackError(
            "the volume `nats` holds streams of other keys than those in the volume `keys`. Restore that one from its backup;"
            ' docs/tenancy.md, "Lost or stolen signing keys", says what to do without one'
        )
    write_database_secrets(volumes)
    crashpoints.reached("before_keys")
    accounts = keys.prepared(volumes.keys, volumes.nats, deployment, resolver=RESOLVER)
    crashpoints.reached("before_secrets")
    publish(volumes.nats_access / "nats.conf", accounts, volumes.nats_user)
    signing = open_folder(volumes.keys)
    for service in SERVICES:
        volumes.secrets(service).chmod(0o700)
        publish(volumes.secrets(service) / CREDS, signing.credentials(service).read_text(), volumes.service_user)
    for folder in (volumes.keys, volumes.creds, volumes.secrets("migrate"), *map(volumes.secrets, SERVICES)):
        give(folder, volumes.service_user)
    for folder in (volumes.nats_access, volumes.nats_store):  # a new volume belongs to root, and NATS runs as another user
        os.chown(folder, volumes.nats_user, volumes.nats_user)
    return is_new


def write_database_secrets(volumes: Volumes) -> None:
    """Passwords of PostgreSQL's roles: all of them for `migrate`, the scheduler's own for the scheduler.

    PostgreSQL itself is given a hash, from which no password can be derived: it is executed when the volume is initialised.
    """
    known = read_passwords(volumes.passwords)
    passwords = {role: known.get(role) or new_password() for role in (ADMIN, OWNER, APP, READER)}
    write_passwords(volumes.passwords, passwords)
    crashpoints.reached("before_passwords")
    for_scheduler = volumes.secrets("scheduler") / PASSWORDS
    publish(for_scheduler, f"*:*:*:{APP}:{passwords[APP]}\n", volumes.service_user)
    # Readable by all in that container: the user that initialises the database is the image's choice.
    statement = f"ALTER ROLE {ADMIN} PASSWORD '{scram_verifier(passwords[ADMIN])}';\n"
    publish(volumes.postgres_access / "password.sql", statement, 0, mode=0o644)
