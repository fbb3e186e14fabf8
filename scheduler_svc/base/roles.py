"""PostgreSQL's roles, created by a superuser once per server; creating them once more has no effect.

Roles belong to the whole server, so they may already exist because of another database or a restored dump.
Tenants' roles read their own rows with psql. The schema's owner creates them, in the server and in `tenant_roles`.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.passwords import new_password, scram_verifier
from scheduler_svc.base.rights import OWNER, Role

LOGINS = {OWNER: "LOGIN CREATEDB CREATEROLE", Role.APP: "LOGIN", Role.READER: "LOGIN", Role.TENANTS: "NOLOGIN"}
"""Attributes by role. The owner has CREATEROLE for tenants' roles: since PostgreSQL 16 it gives no power over other roles."""
_NO_MORE = "NOSUPERUSER NOREPLICATION NOBYPASSRLS"
MIN_SERVER = 150_000
"""Minimum server version: views with `security_invoker` need PostgreSQL 15."""
WITH_TENANT_ROLES = 160_000
"""Minimum server version for tenants' roles: before PostgreSQL 16, CREATEROLE gave power over other roles, and members could SET ROLE."""

OF_SERVICES = f"{OWNER}, {Role.APP}, {Role.READER}"
_FUNCTIONS = {
    f"{OWNER}, {Role.APP}": "pg_(try_)?advisory_.*",
    "": "lo_.*|loread|lowrite|pg_logical_emit_message|pg_export_snapshot",
    OF_SERVICES: "pg_stat_(get_.*|clear_snapshot|force_next_flush)|pg_(database|tablespace|relation|table|total_relation|indexes)_size"
    "|pg_control_.*|pg_current_(wal|xact|snapshot).*|pg_last_(xact|committed)_.*|pg_xact_.*|txid_current.*|txid_status|pg_lock_status"
    "|pg_(safe_snapshot_)?blocking_pids|pg_notify|pg_notification_queue_usage|pg_prepared_xact"
    "|pg_get_(replication_slots|sequence_data|multixact_members)",
}
"""Functions (regular expressions) that PostgreSQL grants to every role, by the roles that keep the right; all others lose it.

With them a tenant could hold the scheduler's advisory locks, fill the disk, exhaust transaction ids, or observe others' storage and load.
"""
_RESERVED_FUNCTIONS = [
    f"""
DO $$ DECLARE f regprocedure; BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f'
             AND p.proname ~ '^({names})$' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
        {f"EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {roles}', f);" if roles else ""}
    END LOOP;
END $$
"""
    for roles, names in _FUNCTIONS.items()
]
COUNTS = ("reltuples", "relpages", "relallvisible", "relallfrozen", "relfrozenxid", "relminmxid")
"""Columns of pg_class that reveal how much all tenants together store."""
_RESERVED_COLUMNS = f"""
DO $$ BEGIN
    REVOKE SELECT ON pg_class FROM PUBLIC;
    EXECUTE (SELECT format('GRANT SELECT (%s) ON pg_class TO PUBLIC', string_agg(quote_ident(attname), ', ')) FROM pg_attribute
             WHERE attrelid = 'pg_class'::regclass AND attnum > 0 AND attname <> ALL ('{{{", ".join(COUNTS)}}}'));
    GRANT SELECT ON pg_class TO {OF_SERVICES};
END $$
"""
SET_BY_OWNER = ("temp_file_limit", "log_min_messages", "log_min_error_statement")
"""Superuser settings that the owner may set on tenants' roles, and tenants may not change."""
_OWNERSHIP = f"""
DO $$ DECLARE r record; BEGIN
    FOR r IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
             WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v') AND c.relowner <> '{OWNER}'::regrole LOOP
        EXECUTE format('ALTER %s %s OWNER TO {OWNER}', CASE r.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, r.name);
    END LOOP;
    FOR r IN SELECT p.oid::regprocedure AS name FROM pg_proc p
             WHERE p.pronamespace = 'public'::regnamespace AND p.proowner <> '{OWNER}'::regrole
             AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e') LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO {OWNER}', r.name);
    END LOOP;
END $$
"""


def make_roles(connection: Connection, passwords: Mapping[str, str]) -> None:
    """Create or update the roles, set the given passwords, and give the database of `connection` to the owner.

    Raises: SystemExit if the server is too old, or the connection's role is not a superuser.
    """
    version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    if version < MIN_SERVER:
        raise SystemExit(f"migrate: PostgreSQL {version // 10_000} is too old; use 16 or newer")
    if connection.execute(text("SHOW is_superuser")).scalar_one() != "on":
        raise SystemExit("migrate: the role of MARLAAS_SCHEDULER_DATABASE_ADMIN_URL is no superuser; name one, or leave the setting out")
    present = set(connection.execute(text("SELECT rolname FROM pg_roles")).scalars())
    for role, attributes in LOGINS.items():
        if version < WITH_TENANT_ROLES:
            attributes = attributes.removesuffix(" CREATEROLE")
        connection.execute(text(f"{'ALTER' if role in present else 'CREATE'} ROLE {role} {attributes} {_NO_MORE}"))
        if role in passwords:
            # Not text(), which would take a verifier's colon for a parameter.
            connection.exec_driver_sql(f"ALTER ROLE {role} PASSWORD '{scram_verifier(passwords[role])}'")
    if version >= WITH_TENANT_ROLES:
        connection.execute(text(f"GRANT {Role.TENANTS} TO {OWNER} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"))
    database = connection.dialect.identifier_preparer.quote(connection.execute(text("SELECT current_database()")).scalar_one())
    for statement in (
        f"ALTER DATABASE {database} OWNER TO {OWNER}",
        f"GRANT ALL ON SCHEMA public TO {OWNER}",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        _OWNERSHIP,
        *_RESERVED_FUNCTIONS,
        _RESERVED_COLUMNS,
        "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC",  # DO blocks would allow endless loops and messages
        f"GRANT USAGE ON LANGUAGE plpgsql TO {OWNER}",
        *([f"GRANT SET ON PARAMETER {', '.join(SET_BY_OWNER)} TO {OWNER}"] if version >= WITH_TENANT_ROLES else []),
        *([f"GRANT pg_use_reserved_connections TO {OF_SERVICES}"] if version >= WITH_TENANT_ROLES else []),
        "REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE postgres TO {OWNER}",
    ):
        connection.execute(text(statement))


def absent_roles(connection: Connection) -> list[str]:
    """Roles in LOGINS that do not exist on the server."""
    present = set(connection.execute(text("SELECT rolname FROM pg_roles")).scalars())
    return [role for role in LOGINS if role not in present]


MAX_CONNECTIONS = 4
"""Maximum connections per tenant: PostgreSQL has few, and the scheduler needs some."""
SETTINGS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "temp_file_limit": "256MB",
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}
"""Session defaults of tenants' roles. A tenant may change the first three, which limit mistakes, but not those that limit its temporary
files and keep its texts out of the server's log."""
MAX_TRANSACTION_S, MAX_IDLE_S = 90.0, 3600.0
"""Limits of `end_long_sessions` in seconds, which a session cannot change. The first exceeds the session defaults, which apply first."""


@dataclass(frozen=True)
class Granted:
    """A role with a new password, which is stored nowhere."""

    tenant: str
    role: str
    password: str


def grant(connection: Connection, tenant: str) -> Granted:
    """Create the tenant's role, or set a new password for the existing one.

    Raises: Reject if there is no such tenant, or the server is too old.
    """
    if (version := int(connection.execute(text("SHOW server_version_num")).scalar_one())) < WITH_TENANT_ROLES:
        raise Reject(f"PostgreSQL {version // 10_000} is too old for roles of tenants; use 16 or newer")
    known = text("SELECT t.id, r.role FROM tenants t LEFT JOIN tenant_roles r ON r.tenant = t.id WHERE t.id = :tenant FOR UPDATE OF t")
    row = connection.execute(known, {"tenant": tenant}).first()
    if row is None:
        raise Reject(f"there is no tenant '{tenant}'; one exists once a task of it was submitted")
    role = row.role or f"tenant_{secrets.token_hex(6)}"
    if row.role is None:
        connection.execute(text("INSERT INTO tenant_roles (role, tenant) VALUES (:role, :tenant)"), {"role": role, "tenant": tenant})
    granted = Granted(tenant, role, new_password())
    if not _exists(connection, role):  # also missing after a restore on another server
        connection.execute(text(f"CREATE ROLE {role}"))
    for statement in (
        f"ALTER ROLE {role} LOGIN CONNECTION LIMIT {MAX_CONNECTIONS} PASSWORD '{scram_verifier(granted.password)}'",
        f"GRANT {Role.TENANTS} TO {role} WITH INHERIT TRUE, SET FALSE",
        f"GRANT {role} TO {OWNER}, {Role.APP} WITH INHERIT TRUE, SET FALSE",  # allows ending its sessions
        *(f"ALTER ROLE {role} SET {name} = '{value}'" for name, value in SETTINGS.items()),
    ):
        connection.exec_driver_sql(statement)  # text() would take a verifier's colon for a parameter
    return granted


def revoke(connection: Connection, tenant: str) -> str:
    """Drop the tenant's role and end its sessions; returns the role. Raises: Reject if the tenant has no role."""
    role = connection.execute(text("DELETE FROM tenant_roles WHERE tenant = :tenant RETURNING role"), {"tenant": tenant}).scalar()
    if role is None:
        raise Reject(f"tenant '{tenant}' has no role; `list` shows those that have one")
    if _exists(connection, role):
        connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :role"), {"role": role})
        connection.execute(text(f"DROP ROLE {role}"))
    return str(role)


async def end_long_sessions(
    connection: AsyncConnection, *, transaction_s: float = MAX_TRANSACTION_S, idle_s: float = MAX_IDLE_S
) -> list[str]:
    """End tenants' sessions with a transaction or idle time over the limits, in seconds; returns their roles.

    A role may change its own `statement_timeout` and similar settings, so the limit is enforced from outside. A transaction holds locks,
    old rows and processor time; an idle session holds one of few connections.
    """
    ended = text(
        "WITH long AS MATERIALIZED (SELECT a.pid, a.usename FROM pg_stat_activity a JOIN tenant_roles r ON r.role = a.usename "
        "WHERE a.xact_start < clock_timestamp() - make_interval(secs => :transaction_s) "
        "OR a.state = 'idle' AND a.state_change < clock_timestamp() - make_interval(secs => :idle_s)) "
        "SELECT usename FROM long WHERE pg_terminate_backend(pid)"
    )
    return list((await connection.execute(ended, {"transaction_s": transaction_s, "idle_s": idle_s})).scalars())


def of_tenants(connection: Connection) -> list[tuple[str, str]]:
    """(tenant, role) of each tenant that has a role."""
    return [(row.tenant, row.role) for row in connection.execute(text("SELECT tenant, role FROM tenant_roles ORDER BY tenant"))]


def _exists(connection: Connection, role: str) -> bool:
    return connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).first() is not None
