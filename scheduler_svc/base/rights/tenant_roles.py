"""Roles of tenants that read their own rows with psql. Made by the owner of the schema, in the server and in `tenant_roles`."""

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.passwords import new_password, scram_verifier
from scheduler_svc.base.rights.access import OWNER, Role
from scheduler_svc.base.rights.roles import WITH_TENANT_ROLES

MAX_CONNECTIONS = 4
"""Connections of one tenant: PostgreSQL's are few, and the scheduler needs some."""
SETTINGS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "temp_file_limit": "256MB",
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}
"""Defaults of its sessions. The first three keep mistakes short, and it may change them; it cannot change what bounds its temporary files
and keeps its texts out of the server's log."""
MAX_TRANSACTION_S, MAX_IDLE_S = 90.0, 3600.0
"""Bounds of `end_long_sessions`, which do not depend on what a session has set. The first leaves room for the defaults to end it first."""


@dataclass(frozen=True)
class Granted:
    """A role with a new password, which is stored nowhere."""

    tenant: str
    role: str
    password: str


def grant(connection: Connection, tenant: str) -> Granted:
    """Make the tenant's role, or give the one that there is a new password.

    Raises: Reject when there is no such tenant, or the server is too old.
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
    if not _exists(connection, role):  # also after a restore on another server
        connection.execute(text(f"CREATE ROLE {role}"))
    for statement in (
        f"ALTER ROLE {role} LOGIN CONNECTION LIMIT {MAX_CONNECTIONS} PASSWORD '{scram_verifier(granted.password)}'",
        f"GRANT {Role.TENANTS} TO {role} WITH INHERIT TRUE, SET FALSE",
        f"GRANT {role} TO {OWNER}, {Role.APP} WITH INHERIT TRUE, SET FALSE",  # to end its sessions
        *(f"ALTER ROLE {role} SET {name} = '{value}'" for name, value in SETTINGS.items()),
    ):
        connection.exec_driver_sql(statement)  # a verifier has a colon, which text() takes for a parameter
    return granted


def revoke(connection: Connection, tenant: str) -> str:
    """Remove the tenant's role and end its sessions; returns the role. Raises: Reject when it has none."""
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
    """End tenants' sessions with a transaction, or an idle time, that is longer; returns the role of each.

    A role may set `statement_timeout` and its like as it wants, so the bound is kept from outside. A transaction holds locks, old rows
    and processor time; an idle session one of few connections.
    """
    ended = text(
        "WITH long AS MATERIALIZED (SELECT a.pid, a.usename FROM pg_stat_activity a JOIN tenant_roles r ON r.role = a.usename "
        "WHERE a.xact_start < clock_timestamp() - make_interval(secs => :transaction_s) "
        "OR a.state = 'idle' AND a.state_change < clock_timestamp() - make_interval(secs => :idle_s)) "
        "SELECT usename FROM long WHERE pg_terminate_backend(pid)"
    )
    return list((await connection.execute(ended, {"transaction_s": transaction_s, "idle_s": idle_s})).scalars())


def of_tenants(connection: Connection) -> list[tuple[str, str]]:
    """(tenant, role) of each tenant that has one."""
    return [(row.tenant, row.role) for row in connection.execute(text("SELECT tenant, role FROM tenant_roles ORDER BY tenant"))]


def _exists(connection: Connection, role: str) -> bool:
    return connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).first() is not None
