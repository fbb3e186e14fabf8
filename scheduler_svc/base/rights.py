"""Rights by table, view and role. Grants and row-level security are generated from this module, and a test tries every right.

marlaas_owner    owns the schema: migrations, and tenants' roles
marlaas_app      the scheduler: all rows, and per table only the statements that it uses
marlaas_reader   reads everything
marlaas_tenants  reads the rows of one tenant; a group role of which every tenant's role is a member

The scheduler's policy is `true`, which PostgreSQL removes at planning, so row-level security adds no cost to its statements.
Views run with the rights of the querying role (`security_invoker`): with their owner's rights they would show all tenants' rows.
A tenant's role is not named after the tenant, since every role may read all roles' names; `tenant_roles` maps roles to tenants.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from common.streams import EVERY_TENANT
from scheduler_svc.base.tables import metadata
from scheduler_svc.base.views import VIEWS

OWNER = "marlaas_owner"


class Role(StrEnum):
    """Roles with rights on tables that another role owns."""

    APP = "marlaas_app"
    READER = "marlaas_reader"
    TENANTS = "marlaas_tenants"


class Right(StrEnum):
    """A statement on a table or view."""

    SELECT = "SELECT"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


tenant_roles = sa.Table(
    "tenant_roles",
    metadata,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False, unique=True),
    sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

SELECT, ALL = frozenset({Right.SELECT}), frozenset(Right)
NONE: frozenset[Right] = frozenset()
_NO_DELETE, _NO_UPDATE = ALL - {Right.DELETE}, ALL - {Right.UPDATE}
_SELECT_UPDATE = SELECT | {Right.UPDATE}

_OF_THE_TENANT = "tenant = (SELECT r.tenant FROM tenant_roles r WHERE r.role = current_user)"
"""Condition for a tenant's rows. The subquery is uncorrelated, so it is evaluated once per statement."""
_OF_ITS_TASKS = "task IN (SELECT t.id FROM tasks t)"
"""Condition for rows of a tenant's tasks: the policy of `tasks` limits the subquery to the tenant's own."""


@dataclass(frozen=True)
class Access:
    """Rights on a table or view; `marlaas_reader` may SELECT from every one."""

    app: frozenset[Right]
    own: str | None = None
    """Condition for the rows that a tenant may read; None if it may read none. Empty for views, which inherit their tables' policies."""

    def rights(self, role: Role) -> frozenset[Right]:
        tenants = NONE if self.own is None else SELECT
        return {Role.APP: self.app, Role.READER: SELECT, Role.TENANTS: tenants}[role]


TABLES: dict[str, Access] = {
    "tenants": Access(_NO_DELETE, _OF_THE_TENANT.replace("tenant =", "id =", 1)),
    "tenant_roles": Access(SELECT, "role = current_user"),
    "keys": Access(ALL, _OF_THE_TENANT),
    "audit": Access(_NO_DELETE, _OF_THE_TENANT),
    "limits": Access(ALL, f"tenant = '{EVERY_TENANT}' OR {_OF_THE_TENANT}"),
    "rates": Access(_NO_DELETE, _OF_THE_TENANT),
    "tasks": Access(ALL, _OF_THE_TENANT),
    "groups": Access(ALL, _OF_ITS_TASKS),
    "trajectories": Access(ALL, _OF_ITS_TASKS),
    "steps": Access(ALL, _OF_ITS_TASKS),
    "evaluations": Access(ALL, _OF_ITS_TASKS),
    "ledger": Access(ALL, _OF_THE_TENANT),
    "aliases": Access(ALL, _OF_THE_TENANT),
    "webhooks": Access(ALL),
    "webhook_deliveries": Access(ALL),
    "prices": Access(SELECT | {Right.INSERT}, "true"),
    "budgets": Access(ALL, _OF_THE_TENANT),
    "deleted_usage": Access(SELECT | {Right.INSERT}, _OF_THE_TENANT),
    "package_usage": Access(_NO_DELETE, _OF_THE_TENANT),
    "served_requests": Access(_NO_UPDATE, _OF_THE_TENANT),
    "served_usage": Access(_NO_DELETE, _OF_THE_TENANT),
    "events": Access(_NO_UPDATE, _OF_THE_TENANT),
    "event_numbers": Access(_NO_DELETE, _OF_THE_TENANT),
    "dead_letters": Access(ALL, _OF_ITS_TASKS),
    "packages": Access(ALL, _OF_THE_TENANT),
    "package_parts": Access(_NO_UPDATE, _OF_THE_TENANT),
    "deleted_tasks": Access(_NO_DELETE, _OF_THE_TENANT),
    "stored_blobs": Access(_NO_UPDATE, "task IN (SELECT t.id FROM tasks t UNION ALL SELECT d.id FROM deleted_tasks d)"),
    "accelerators": Access(_NO_DELETE),
    "executors": Access(ALL),
    "slices": Access(ALL),
    "slice_shares": Access(SELECT | {Right.INSERT}, _OF_THE_TENANT),
    "moves": Access(_NO_UPDATE),
    "pool_clocks": Access(_NO_DELETE),
    "outbox": Access(_NO_UPDATE),
    "relay": Access(_SELECT_UPDATE),
    "replicas": Access(ALL),
    "store_alarm": Access(_SELECT_UPDATE),
    "alembic_version": Access(SELECT),
}
VIEW_ACCESS: dict[str, Access] = {
    "task_status": Access(SELECT, ""),
    "task_staleness": Access(SELECT, ""),
    "task_timeline": Access(SELECT, ""),
    "task_evaluations": Access(SELECT, ""),
    "task_storage": Access(SELECT, ""),
    "tenant_usage": Access(SELECT, ""),
    "task_invoice": Access(SELECT, ""),
    "tenant_invoice": Access(SELECT, ""),
    "stage_health": Access(SELECT),
    "accelerator_slices": Access(SELECT),
    "accelerator_use": Access(SELECT),
    "move_costs": Access(SELECT),
    "pool_status": Access(SELECT),
    "task_homes": Access(SELECT, ""),
}


OUTBOX_SEQUENCE = "outbox_id_seq"
"""Sequence whose position the scheduler compares with NATS's, and which `reconcile` sets. Without the right to read it, PostgreSQL
returns NULL and no error."""


def missing() -> set[str]:
    """Tables and views that are in only one of the schema and this module."""
    return (set(metadata.tables) | {"alembic_version"}) ^ set(TABLES) | set(VIEWS) ^ set(VIEW_ACCESS)


def statements() -> list[str]:
    """Statements that grant exactly these rights, whatever was granted before; the tables' owner must run them."""
    roles = ", ".join(Role)
    lines = [f"REVOKE ALL ON SCHEMA public FROM {roles}", f"GRANT USAGE ON SCHEMA public TO {roles}"]
    for name, access in TABLES.items():
        lines.append(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
        lines += [f"DROP POLICY IF EXISTS {role} ON {name}" for role in Role]
        lines.append(f"CREATE POLICY {Role.APP} ON {name} TO {Role.APP} USING (true) WITH CHECK (true)")
        lines.append(f"CREATE POLICY {Role.READER} ON {name} FOR SELECT TO {Role.READER} USING (true)")
        if access.own is not None:
            lines.append(f"CREATE POLICY {Role.TENANTS} ON {name} FOR SELECT TO {Role.TENANTS} USING ({access.own})")
    lines += [f"ALTER VIEW {name} SET (security_invoker = true)" for name in VIEW_ACCESS]
    for name, access in (TABLES | VIEW_ACCESS).items():
        lines.append(f"REVOKE ALL ON {name} FROM PUBLIC, {roles}")
        lines += [f"GRANT {', '.join(sorted(rights))} ON {name} TO {role}" for role in Role if (rights := access.rights(role))]
    lines.append(f"GRANT SELECT, UPDATE ON SEQUENCE {OUTBOX_SEQUENCE} TO {Role.APP}")
    return lines
