"""PostgreSQL's roles, made by a superuser: needed once a server, and repeated without effect.

Roles belong to the whole server, so another database of it, or a restored dump, may find them there already.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, text

from common.passwords import scram_verifier
from scheduler_svc.base.rights.access import OWNER, Role

LOGINS = {OWNER: "LOGIN CREATEDB CREATEROLE", Role.APP: "LOGIN", Role.READER: "LOGIN", Role.TENANTS: "NOLOGIN"}
"""Role → its attributes. CREATEROLE of the owner is for tenants' roles: since PostgreSQL 16 it gives no power over other roles."""
_NO_MORE = "NOSUPERUSER NOREPLICATION NOBYPASSRLS"
MIN_SERVER = 150_000
"""Oldest server: views with the rights of their reader came with PostgreSQL 15."""
WITH_TENANT_ROLES = 160_000
"""Oldest server that can have roles of tenants: before PostgreSQL 16 CREATEROLE gave power over other roles, and every member SET ROLE."""

OF_SERVICES = f"{OWNER}, {Role.APP}, {Role.READER}"
_FUNCTIONS = {
    f"{OWNER}, {Role.APP}": "pg_(try_)?advisory_.*",
    "": "lo_.*|loread|lowrite|pg_logical_emit_message|pg_export_snapshot",
    OF_SERVICES: "pg_stat_(get_.*|clear_snapshot|force_next_flush)|pg_(database|tablespace|relation|table|total_relation|indexes)_size"
    "|pg_control_.*|pg_current_(wal|xact|snapshot).*|pg_last_(xact|committed)_.*|pg_xact_.*|txid_current.*|txid_status|pg_lock_status"
    "|pg_(safe_snapshot_)?blocking_pids|pg_notify|pg_notification_queue_usage|pg_prepared_xact"
    "|pg_get_(replication_slots|sequence_data|multixact_members)",
}
"""Who keeps the right to functions (regular expressions) that PostgreSQL gives to every role; none that it does not.

With them a tenant could hold the scheduler's advisory locks, fill the disk, use up transaction numbers, or count what others store and do.
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
"""Columns of pg_class that tell how much all tenants together store."""
_RESERVED_COLUMNS = f"""
DO $$ BEGIN
    REVOKE SELECT ON pg_class FROM PUBLIC;
    EXECUTE (SELECT format('GRANT SELECT (%s) ON pg_class TO PUBLIC', string_agg(quote_ident(attname), ', ')) FROM pg_attribute
             WHERE attrelid = 'pg_class'::regclass AND attnum > 0 AND attname <> ALL ('{{{", ".join(COUNTS)}}}'));
    GRANT SELECT ON pg_class TO {OF_SERVICES};
END $$
"""
SET_BY_OWNER = ("temp_file_limit", "log_min_messages", "log_min_error_statement")
"""Settings that only a superuser may change: the owner may, of tenants' roles, and these may not change them back."""
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
    """Make the roles, give them what is in `passwords`, and the database of `connection` to the owner.

    Raises: SystemExit where the server is too old, or the connection's role is no superuser.
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
            # Not text(): a verifier has a colon, which that takes for a parameter.
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
        "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC",  # DO: loops and messages without an end
        f"GRANT USAGE ON LANGUAGE plpgsql TO {OWNER}",
        *([f"GRANT SET ON PARAMETER {', '.join(SET_BY_OWNER)} TO {OWNER}"] if version >= WITH_TENANT_ROLES else []),
        *([f"GRANT pg_use_reserved_connections TO {OF_SERVICES}"] if version >= WITH_TENANT_ROLES else []),
        "REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE postgres TO {OWNER}",
    ):
        connection.execute(text(statement))


def absent_roles(connection: Connection) -> list[str]:
    """Roles that the server lacks."""
    present = set(connection.execute(text("SELECT rolname FROM pg_roles")).scalars())
    return [role for role in LOGINS if role not in present]
