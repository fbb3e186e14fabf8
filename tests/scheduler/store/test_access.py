"""Rights of each role on each table and view, tried on a real server against the table in `base/rights.py`."""

import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from marlaas.stack import servers
from scheduler_svc.base import rights, roles
from scheduler_svc.base.rights import TABLES, VIEW_ACCESS, Right, Role
from scheduler_svc.migrate import migrate
from tests.support.postgres import as_role, copied_database

RELATIONS = TABLES | VIEW_ACCESS
TENANTS = ("acme", "globex")
ROWS = """
INSERT INTO tenants (id) VALUES ('TENANT');
INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,
    trajectory_tokens, admitted, homes)
    VALUES ('', 'TENANT' || '-task', 'TENANT', 'TENANT', 'tiny', '{"canary": "TENANT"}', 'running', 0, 2, 2, 2, 0, 9, 1, '{"trainer": {}}');
INSERT INTO groups (size, task, number, version, state, detail, row, seed, charged_tokens, step, deadline_at)
    VALUES (2, 'TENANT' || '-task', 0, 0, 'batched', 'TENANT', 0, 0, 0, 0, now());
INSERT INTO trajectories (task, "group", member, state, detail)
    VALUES ('TENANT' || '-task', 0, 0, 'open', 'TENANT');
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, metrics, first_admitted_at, first_scored_at,
    last_scored_at) VALUES ('TENANT' || '-task', 0, 'batched', 0, 0, 0, 0, jsonb_build_object('canary', 'TENANT'), now(), now(), now());
INSERT INTO evaluations (task, version, state) VALUES ('TENANT' || '-task', 0, 'running');
INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES ('TENANT', 'TENANT' || '-task', 'sampled', 0, 5);
INSERT INTO deleted_usage (task, day, kind, tenant, pool, quantity, money)
    VALUES ('TENANT' || '-old', '2030-01-02', 'sampled', 'TENANT', 'tiny', 1, 1);
INSERT INTO package_usage (tenant, day, hour, quantity, money) VALUES ('TENANT', '2030-01-02', 0, 1, 1);
INSERT INTO served_requests (request, tenant, key, pool, task, version, attempt, prompt_tokens, cached_tokens, sampled_tokens)
    VALUES ('TENANT', 'TENANT', 'TENANT', 'tiny', 'TENANT' || '-task', 1, 0, 1, 0, 1);
INSERT INTO served_usage (tenant, day, pool, task, kind, quantity, money)
    VALUES ('TENANT', '2030-01-02', 'tiny', 'TENANT' || '-task', 'served_sampled', 1, 1);
INSERT INTO budgets (tenant, period, unit, amount, begins_at, before) VALUES ('TENANT', 'total', 'tokens', 1, now(), 0);
INSERT INTO keys (key, tenant, name, role) VALUES (rpad('U' || upper('TENANT'), 56, 'A'), 'TENANT', 'TENANT', 'owner');
INSERT INTO audit (tenant, via, verb, outcome) VALUES ('TENANT', 'short form', 'submit', 'accepted');
INSERT INTO limits (tenant, max_tasks) VALUES ('TENANT', 3);
INSERT INTO rates (tenant, kind, used, granted, at) VALUES ('TENANT', 'jobs', 1, 1, now());
INSERT INTO aliases (tenant, name, task, version, pool, adapter, request)
    VALUES ('TENANT', 'prod', 'TENANT' || '-task', 1, 'tiny', '{}', 'r');
INSERT INTO packages (tenant, digest, size_bytes, state, objection) VALUES ('TENANT', repeat('a', 64), 1, 'refused', 'TENANT');
INSERT INTO package_parts (tenant, digest, begin, data) VALUES ('TENANT', repeat('a', 64), 0, convert_to('TENANT', 'UTF8'));
INSERT INTO prices (kind, price, per) VALUES ('sampled', 1, 1);
INSERT INTO events (number, tenant, task, event, data)
    VALUES (1, 'TENANT', 'TENANT' || '-task', 'accepted', jsonb_build_object('canary', 'TENANT'));
INSERT INTO event_numbers (tenant, task, last) VALUES ('TENANT', 'TENANT' || '-task', 1);
INSERT INTO dead_letters (sequence, stage, task, subject, reason, attempts)
    VALUES (length('TENANT'), 'sample', 'TENANT' || '-task', 'TENANT', 'TENANT', 1);
INSERT INTO deleted_tasks (id, tenant, name, state, version, prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens, deleted_by,
    submitted_at, ended_at) VALUES ('TENANT' || '-old', 'TENANT', 'TENANT', 'finished', 0, 1, 1, 1, 1, 1, now(), now());
INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES ('TENANT' || '-a', 'TENANT' || '-task', 1, 'adapter', 1);
INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES ('TENANT' || '-b', 'TENANT' || '-old', 1, 'adapter', 1);
INSERT INTO accelerators (id, spec) VALUES ('TENANT', jsonb_build_object('canary', 'TENANT'));
INSERT INTO executors (accelerator, id, pool, service) VALUES ('TENANT', 'trainer-tiny', 'TENANT', 'trainer');
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at)
    VALUES ('TENANT', 1, 'trainer-tiny', 'TENANT', 'train', 'first', ARRAY['TENANT'], 1, 'host', now());
INSERT INTO slice_shares (accelerator, epoch, task, tenant, ms) VALUES ('TENANT', 1, 'TENANT' || '-task', 'TENANT', 7);
INSERT INTO moves (accelerator, executor, epoch, from_tier, to_tier, bytes, seconds)
    VALUES ('TENANT', 'trainer-tiny', 1, 'host', 'device', 1, 1);
INSERT INTO pool_clocks (pool) VALUES ('TENANT');
INSERT INTO outbox (subject, message_id, headers, body) VALUES ('events.' || 'TENANT', 'TENANT', '{}', convert_to('TENANT', 'UTF8'));
INSERT INTO replicas (id, service, report) VALUES ('TENANT', 'env', jsonb_build_object('canary', 'TENANT'))
"""


@pytest.fixture(scope="module")
def url(postgres_port: int, migrated_database: str) -> str:
    """A database with a row of both tenants in each table that has rows of tenants; for the owner."""
    url = as_role(copied_database(postgres_port, migrated_database), servers.OWNER)
    migrate(url)  # rights on a database are not copied with it
    with create_engine(url, poolclass=NullPool).begin() as connection:
        for tenant in TENANTS:
            connection.exec_driver_sql(ROWS.replace("TENANT", tenant))
    return url


@pytest.fixture(scope="module")
def users(url: str) -> Iterator[dict[str, str]]:
    """Addresses of users: of each role, of a tenant, and of a role without any right."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        granted = roles.grant(connection, "acme")
        connection.execute(text("CREATE ROLE stranger LOGIN PASSWORD 'stranger'"))
    named = {"app": Role.APP, "reader": Role.READER, "tenant": granted.role}
    addresses = {user: make_url(as_role(url, role)) for user, role in named.items()}
    addresses["tenant"] = addresses["tenant"].set(password=granted.password)
    yield {user: at.set(drivername="postgresql").render_as_string(hide_password=False) for user, at in addresses.items()}
    with create_engine(url, poolclass=NullPool).begin() as connection:
        roles.revoke(connection, "acme")
        connection.execute(text("DROP ROLE stranger"))


OF_USER = {"app": Role.APP, "reader": Role.READER, "tenant": Role.TENANTS}


def attempt(connection: psycopg.Connection, relation: str, right: Right) -> bool:
    """Whether the server lets the statement begin."""
    column = connection.execute("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum = 1", [relation]).fetchone()
    assert column is not None
    names = {"relation": sql.Identifier(relation), "column": sql.Identifier(column[0])}
    statement = {
        Right.SELECT: "SELECT * FROM {relation}",
        Right.INSERT: "INSERT INTO {relation} DEFAULT VALUES",
        Right.UPDATE: "UPDATE {relation} SET {column} = NULL WHERE false",
        Right.DELETE: "DELETE FROM {relation} WHERE false",
    }[right]
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(sql.SQL(statement).format(**names))
    except psycopg.errors.IntegrityError:
        return True  # the right was there, and the empty row was not a valid one
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.FeatureNotSupported):
        return False  # no right, or a view that takes no rows
    return True


def test_every_table_and_view_has_its_rights(url: str) -> None:
    assert rights.missing() == set()
    with create_engine(url, poolclass=NullPool).begin() as connection:
        found = connection.execute(
            text("SELECT relname FROM pg_class WHERE relkind IN ('r','v','m','p','f') AND relnamespace = 'public'::regnamespace")
        )
        assert set(found.scalars()) == set(RELATIONS)
        loose = connection.execute(
            text("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND NOT relrowsecurity")
        )
        assert loose.scalars().all() == []
        rights_of_their_owner = connection.execute(
            text(
                "SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'public'::regnamespace "
                "AND NOT 'security_invoker=true' = ANY (coalesce(reloptions, '{}'))"
            )
        )
        assert rights_of_their_owner.scalars().all() == []


@pytest.mark.parametrize("user", list(OF_USER))
def test_every_cell_of_the_table_is_as_the_server_has_it(users: dict[str, str], user: str) -> None:
    cells = {(relation, right): right in rights.rights(OF_USER[user]) for relation, rights in RELATIONS.items() for right in Right}
    with psycopg.connect(users[user], autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        found = {cell: attempt(connection, *cell) for cell in cells}
    print(f"{user}: {sum(found[cell] == cells[cell] for cell in cells)} of {len(cells)} cells")
    assert {cell: allowed for cell, allowed in found.items() if allowed != cells[cell]} == {}


def test_tenant_sees_its_own_rows_and_no_others(users: dict[str, str]) -> None:
    with psycopg.connect(users["tenant"], autocommit=True) as connection:
        for relation, rights in RELATIONS.items():
            if Right.SELECT not in rights.rights(Role.TENANTS):
                continue
            rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(relation))).fetchall()
            assert rows, relation
            assert "globex" not in str(rows), relation
    for user in ("app", "reader"):
        with psycopg.connect(users[user], autocommit=True) as connection:
            for relation, rights in RELATIONS.items():
                if rights.own not in (None, "true") and relation != "tenant_roles":
                    rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(relation))).fetchall()
                    assert all(tenant in str(rows) for tenant in TENANTS), (user, relation)


def test_no_name_of_another_tenant_is_in_what_every_role_reads(users: dict[str, str]) -> None:
    with psycopg.connect(users["tenant"], autocommit=True) as connection:
        for catalog in (
            "pg_roles",
            "pg_auth_members",
            "pg_shdescription",
            "pg_db_role_setting",
            "pg_stats",
            "pg_policies",
        ):
            assert "globex" not in str(connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(catalog))).fetchall()), catalog


WAYS_UP = [
    "SET ROLE marlaas",
    "SET ROLE marlaas_owner",
    "SET ROLE stranger",
    "SET ROLE marlaas_tenants",
    "SET SESSION AUTHORIZATION marlaas_owner",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY tasks FROM PROGRAM 'true'",
    "COPY tasks FROM '/etc/hostname'",
    "COPY (SELECT 1) TO '/tmp/marlaas-way-up'",
    "SELECT pg_read_file('/etc/hostname')",
    "SELECT pg_read_binary_file('postgresql.conf')",
    "SELECT pg_ls_dir('/')",
    "SELECT pg_stat_file('/etc/hostname')",
    "SELECT lo_import('/etc/hostname')",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "CREATE FUNCTION public.up() RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT 1::text'",
    "CREATE FUNCTION pg_temp.leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS 'BEGIN RAISE NOTICE ''%'', $1; RETURN true; END'",
    "CREATE OR REPLACE FUNCTION count_booked() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)",
    "CREATE TABLE public.up (x int)",
    "CREATE TEMP TABLE up (x int)",
    "CREATE VIEW public.up AS SELECT 1",
    "CREATE SCHEMA up",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "ALTER ROLE CURRENT_USER BYPASSRLS",
    "ALTER ROLE CURRENT_USER CREATEROLE",
    "ALTER ROLE marlaas_owner PASSWORD 'x'",
    "CREATE ROLE up SUPERUSER",
    "GRANT marlaas_owner TO CURRENT_USER",
    "GRANT pg_read_server_files TO CURRENT_USER",
    "DROP TABLE outbox",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION file_fdw",
    "CREATE LANGUAGE plpython3u",
    "CREATE FUNCTION public.up() RETURNS int LANGUAGE c AS 'libc.so.6', 'getpid'",
    "LOAD '/tmp/up.so'",
    "CREATE FOREIGN DATA WRAPPER up",
    "CREATE SUBSCRIPTION up CONNECTION 'host=127.0.0.1' PUBLICATION x WITH (connect = false)",
    "CREATE EVENT TRIGGER up ON ddl_command_start EXECUTE FUNCTION count_booked()",
    "CREATE TRIGGER up BEFORE UPDATE ON tenants FOR EACH ROW EXECUTE FUNCTION count_stored()",
    "CREATE RULE up AS ON SELECT TO tenants DO INSTEAD NOTHING",
    "ALTER TABLE tasks DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE tasks OWNER TO CURRENT_USER",
    "ALTER VIEW task_status SET (security_invoker = false)",
    "DROP POLICY marlaas_tenants ON tasks",
    "CREATE POLICY up ON tasks TO PUBLIC USING (true)",
    "TRUNCATE tasks CASCADE",
    "SELECT rolpassword FROM pg_authid",
    "SELECT passwd FROM pg_shadow",
    "ALTER SYSTEM SET fsync = off",
    "ALTER DATABASE postgres SET search_path = x",
    "SELECT pg_reload_conf()",
    "SELECT pg_logical_emit_message(false, 'x', 'x')",
    "SET session_preload_libraries = 'up'",
    "SET log_statement = 'none'",
    "SELECT set_config('session_authorization', 'marlaas_owner', false)",
    "SELECT pg_promote()",
    "CHECKPOINT",
    "DO $$ BEGIN EXECUTE 'SET ROLE marlaas_owner'; END $$",
]
OF_OTHERS = [
    "SELECT pg_advisory_lock(7301)",
    "SELECT pg_try_advisory_xact_lock(7302)",
    "DO $$ BEGIN LOCK TABLE tasks IN EXCLUSIVE MODE; END $$",
    "SELECT * FROM tasks FOR UPDATE",
    "SELECT nextval('ledger_id_seq')",
    "SELECT setval('outbox_id_seq', 1)",
    "SET ROLE marlaas_app",
]
"""Ways that are closed to readers and tenants, and not to the scheduler, or not needed by it."""
REFUSED = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.CantChangeRuntimeParam,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.UndefinedObject,
)


@pytest.mark.parametrize("user", list(OF_USER))
def test_no_way_leads_up(users: dict[str, str], user: str) -> None:
    """None of the statements runs, with transactions as the user likes them."""
    ways = WAYS_UP if user == "app" else WAYS_UP + OF_OTHERS
    ran: dict[str, str] = {}
    with psycopg.connect(users[user], autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        for way in ways:
            try:
                connection.execute(way.encode())
                ran[way] = "ran"
            except REFUSED:
                pass
            except psycopg.Error as error:
                ran[way] = f"{type(error).__name__}: {error}"
    print(f"{user}: {len(ways) - len(ran)} of {len(ways)} refused")
    assert ran == {}


def test_row_level_security_is_not_a_choice_of_the_user(users: dict[str, str]) -> None:
    with psycopg.connect(users["tenant"], autocommit=True) as connection:
        connection.execute("SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute("SELECT * FROM tasks")
        connection.execute("RESET row_security")
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("GRANT SELECT ON tasks TO stranger")  # a warning, and no effect
        assert connection.execute("SELECT has_table_privilege('stranger', 'tasks', 'SELECT')").fetchone() == (False,)


def test_scheduler_reads_and_moves_the_position_of_its_outbox(users: dict[str, str]) -> None:
    with psycopg.connect(users["app"], autocommit=True) as connection:
        connection.execute("SELECT setval('outbox_id_seq', 70)")
        assert connection.execute("SELECT pg_sequence_last_value('outbox_id_seq')").fetchone() == (70,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT setval('ledger_id_seq', 1)")


def test_other_databases_are_closed(users: dict[str, str]) -> None:
    for _user, address in users.items():
        for database in ("postgres", "template1"):
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                psycopg.connect(address.rpartition("/")[0] + f"/{database}")
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(re.sub("//.*@", "//stranger:stranger@", address))


def test_conditions_with_side_effects_see_only_own_rows(users: dict[str, str]) -> None:
    """Errors of a user's own condition would tell of rows that it may not see, if that condition came first."""
    conditions = [
        "1 / (CASE WHEN tenant = 'globex' THEN 0 ELSE 1 END) > 0",
        "CAST(CASE WHEN id LIKE 'globex%' THEN 'x' ELSE '1' END AS int) = 1",
        "jsonb_path_exists(spec, '$.canary ? (@ == \"globex\")') AND (spec ->> 'canary')::int = 1",
    ]
    with psycopg.connect(users["tenant"], autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog, public")
        for condition in conditions:
            rows = connection.execute(f"SELECT * FROM tasks WHERE {condition}".encode()).fetchall()
            assert "globex" not in str(rows)


def test_view_made_anew_by_a_migration_has_its_rights_again(url: str, users: dict[str, str]) -> None:
    """Replacing a view loses `security_invoker`; the rights are given again with each revision."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        definition = connection.execute(text("SELECT pg_get_viewdef('task_status'::regclass)")).scalar_one()
        connection.execute(text(f"CREATE OR REPLACE VIEW task_status WITH (security_invoker = false) AS {definition}"))
        connection.execute(text("COMMENT ON TABLE alembic_version IS 'rights: of another revision'"))
    with psycopg.connect(users["tenant"]) as connection:
        assert "globex" in str(connection.execute("SELECT * FROM task_status").fetchall())
    migrate(url)
    with psycopg.connect(users["tenant"]) as connection:
        assert "globex" not in str(connection.execute("SELECT * FROM task_status").fetchall())


def test_migration_is_repeatable_where_the_roles_exist_already(url: str, users: dict[str, str]) -> None:
    migrate(url, admin_url=as_role(url, servers.ADMIN))  # without a file of passwords: they stay
    psycopg.connect(users["app"]).close()
    test_every_table_and_view_has_its_rights(url)


def test_rights_are_given_once(url: str) -> None:
    """A scheduler at work would wait for the statements."""
    with psycopg.connect(as_role(url, servers.OWNER).replace("+psycopg", "")) as reading:
        reading.execute("SELECT * FROM tasks")  # a second ALTER TABLE would wait for this transaction
        migrate(url)
