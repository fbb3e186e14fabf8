"""Migrates the database to this version's schema: `python -m scheduler_svc.migrate`. Idempotent and safe to run concurrently.

With a superuser's URL it creates the roles first; then the owner migrates, grants each role its rights (`base/rights.py`), and deletes
expired audit rows. If the pools file shares no accelerator, it ends open slices and starts stopped clocks, since a
scheduler without shared accelerators does not look at them.
"""

import hashlib
from pathlib import Path

from alembic import command
from alembic.util import CommandError
from sqlalchemy import Connection, make_url, text

from common import streams
from common.errors import Fatal
from common.messages import PoolClock
from common.passwords import read_passwords
from common.pools import read_accelerators
from migrations.transaction import in_transaction
from scheduler_svc.base import rights, roles
from scheduler_svc.base.database import alembic_config, expected_revision


def migrate(url: str, *, admin_url: str = "", app_url: str = "", audit_days: int = 0) -> None:
    """Apply missing migrations as the schema's owner; with `admin_url`, create the roles of `base/rights.py` first.

    Roles get the passwords in the `passfile` of `admin_url`, and in `url` and `app_url`; roles without one keep their password.
    Raises: SystemExit, with one line, if the database does not answer, has a newer schema, or lacks the roles.
    """
    if admin_url:
        in_transaction(admin_url, lambda connection: roles.make_roles(connection, _passwords(admin_url, url, app_url)))
    try:
        command.upgrade(alembic_config(url), "head")
    except CommandError as error:
        raise SystemExit(
            f"migrate: the database was made by a newer version than this one, which ends at {expected_revision()}: {error}"
        ) from None
    in_transaction(url, give_rights)
    if audit_days:
        in_transaction(url, lambda connection: _expire_audit(connection, audit_days))


def give_rights(connection: Connection) -> None:
    """Grant each role its rights. Skipped if already done for this schema, since the grants wait for a running scheduler's transactions.

    Raises: SystemExit if the server lacks a role.
    """
    if absent := roles.absent_roles(connection):
        raise SystemExit(
            f"migrate: PostgreSQL has no role {', '.join(absent)}; give MARLAAS_SCHEDULER_DATABASE_ADMIN_URL, the address of a superuser"
        )
    statements = rights.statements()
    given = "rights: " + hashlib.sha256("\n".join([expected_revision(), *statements]).encode()).hexdigest()
    if connection.execute(text("SELECT obj_description('alembic_version'::regclass)")).scalar_one() != given:
        for statement in statements:
            connection.execute(text(statement))
        connection.execute(text(f"COMMENT ON TABLE alembic_version IS '{given}'"))
    database = connection.dialect.identifier_preparer.quote(connection.execute(text("SELECT current_database()")).scalar_one())
    connection.execute(text(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC"))
    connection.execute(text(f"GRANT CONNECT ON DATABASE {database} TO {', '.join(rights.Role)}"))


def _expire_audit(connection: Connection, days: int) -> None:
    """Delete expired audit rows. Only the schema's owner may: the scheduler cannot delete its own records."""
    expired = text("DELETE FROM audit WHERE coalesce(hour, at) < now() - make_interval(days => :days)")
    connection.execute(expired, {"days": days})


def end_sharing(connection: Connection) -> None:
    """End open slices and start stopped pool clocks, as no leader will. Samplers and environments read the clocks in their bucket.

    Executors are recorded as cold and as reading no queue of their own, so messages for tasks' homes go to the pool's queue.
    """
    for statement in (_END_SLICES, _REST, _CLEAR_QUEUES, _RELEASE_CLOCKS):
        connection.execute(text(statement))


_NOW = "date_trunc('milliseconds', now())"
_END_SLICES = f"""
UPDATE slices SET ended = 'removed', ended_at = greatest(coalesce(awake_at, ordered_at), {_NOW}) WHERE ended_at IS NULL
"""
_REST = "UPDATE executors SET state = 'cold', tier = 'off' WHERE tier <> 'off'"
_CLEAR_QUEUES = "UPDATE executors SET has_queue = false WHERE has_queue"
_RELEASE_CLOCKS = f"""
WITH released AS (
    UPDATE pool_clocks SET parked_since = NULL,
        parked_ms = parked_ms + greatest(0, extract(epoch FROM {_NOW} - parked_since) * 1000)::bigint
    WHERE parked_since IS NOT NULL RETURNING pool, parked_ms)
INSERT INTO outbox (subject, message_id, headers, body)
SELECT '{streams.value_subject(streams.CLOCKS_BUCKET, "")}' || pool, '', jsonb_build_object('{streams.KIND_HEADER}', '{PoolClock.kind}'),
       convert_to(jsonb_build_object('parked_s', parked_ms / 1000.0, 'parked_since_s', NULL)::text, 'UTF8')
FROM released ORDER BY pool
"""


def _shares_nothing(pools_file: Path) -> bool:
    """Whether the pools file shares no accelerator; False if it cannot be read, which the services will report."""
    try:
        return not read_accelerators(pools_file, {})
    except Fatal:
        return False


def _passwords(admin_url: str, *others: str) -> dict[str, str]:
    named = make_url(admin_url).query.get("passfile")
    inside = [make_url(url) for url in others if url]
    return (read_passwords(Path(named)) if isinstance(named, str) else {}) | {
        url.username: str(url.password) for url in inside if url.username and url.password
    }


def main() -> None:
    from common.runtime.logs import configure_logs
    from common.runtime.settings import read_or_exit
    from scheduler_svc.settings import SchedulerSettings

    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    configure_logs("migrate", settings.replica, settings.log_level)
    owner_url = settings.database_owner_url or settings.database_url
    app_url, days = settings.database_url, settings.audit_days
    migrate(owner_url, admin_url=settings.database_admin_url, app_url=app_url, audit_days=days)
    if _shares_nothing(settings.pools_file):
        in_transaction(owner_url, end_sharing)


if __name__ == "__main__":
    main()
