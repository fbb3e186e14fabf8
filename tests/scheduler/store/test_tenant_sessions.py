"""What the session of a tenant's role can do to others, tried on a real server: PostgreSQL lets every role set most of its settings."""

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from marlaas.stack import servers
from scheduler_svc.base import roles
from scheduler_svc.base.database import Database
from scheduler_svc.base.roles import SETTINGS, end_long_sessions
from scheduler_svc.migrate import migrate
from tests.support.postgres import as_role, copied_database
from tests.support.scheduler.statements import select
from tests.support.waiting import eventually_equals


@pytest.fixture(scope="module")
def owner(postgres_port: int, migrated_database: str) -> str:
    url = as_role(copied_database(postgres_port, migrated_database), servers.OWNER)
    migrate(url)
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
    return url


@pytest.fixture(scope="module")
def tenant(owner: str) -> Iterator[str]:
    """Address of a tenant's role."""
    with create_engine(owner, poolclass=NullPool).begin() as connection:
        granted = roles.grant(connection, "acme")
    address = make_url(owner).set(drivername="postgresql", username=granted.role, password=granted.password, query={})
    yield address.render_as_string(hide_password=False)
    with create_engine(owner, poolclass=NullPool).begin() as connection:
        roles.revoke(connection, "acme")


OF_OTHERS = [
    "SELECT * FROM pg_stat_activity",
    "SELECT * FROM pg_stat_all_tables",
    "SELECT * FROM pg_stat_user_tables",
    "SELECT * FROM pg_statio_all_tables",
    "SELECT * FROM pg_stat_xact_all_tables",
    "SELECT * FROM pg_stat_all_indexes",
    "SELECT * FROM pg_stat_database",
    "SELECT * FROM pg_stat_io",
    "SELECT * FROM pg_stat_wal",
    "SELECT * FROM pg_stat_bgwriter",
    "SELECT * FROM pg_stat_ssl",
    "SELECT * FROM pg_stat_progress_vacuum",
    "SELECT pg_stat_get_live_tuples('tasks'::regclass)",
    "SELECT pg_stat_get_tuples_inserted('ledger'::regclass)",
    "SELECT pg_stat_get_db_xact_commit(oid) FROM pg_database",
    "SELECT reltuples FROM pg_class",
    "SELECT relpages FROM pg_class",
    "SELECT relallvisible FROM pg_class",
    "SELECT c FROM pg_class c",
    "SELECT stxdndistinct FROM pg_statistic_ext_data",
    "SELECT * FROM pg_statistic",
    "SELECT * FROM pg_locks",
    "SELECT pg_blocking_pids(1)",
    "SELECT pg_relation_size('tasks')",
    "SELECT pg_table_size('tasks')",
    "SELECT pg_total_relation_size('tasks')",
    "SELECT pg_indexes_size('tasks')",
    "SELECT pg_database_size(current_database())",
    "SELECT last_value FROM outbox_id_seq",
    "SELECT last_value FROM ledger_id_seq",
    "SELECT * FROM pg_get_sequence_data('ledger_id_seq')",
    "SELECT pg_current_wal_lsn()",
    "SELECT * FROM pg_control_checkpoint()",
    "SELECT pg_current_snapshot()",
    "SELECT txid_current_snapshot()",
]
TO_OTHERS = [
    "SELECT pg_current_xact_id()",
    "SELECT txid_current()",
    "SELECT pg_notify('x', repeat('x', 7000))",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_try_advisory_lock_shared(1)",
    "SELECT lo_creat(0)",
    "SELECT pg_export_snapshot()",
    "CREATE TEMP TABLE x (y int)",
    "SELECT 1 INTO TEMP x",
    "DO $$ BEGIN LOOP RAISE WARNING 'x'; END LOOP; END $$",
    "CREATE FUNCTION pg_temp.x() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
    "SET temp_file_limit = -1",
    "ALTER ROLE CURRENT_USER SET temp_file_limit = -1",
    "SET log_min_messages = 'debug5'",
    "SET log_min_error_statement = 'error'",
    "SET log_statement = 'all'",
    "SET log_min_duration_statement = 0",
    "ALTER ROLE CURRENT_USER CONNECTION LIMIT 100",
    "ALTER ROLE CURRENT_USER VALID UNTIL 'infinity'",
    "VACUUM FULL tasks",
    "REINDEX TABLE tasks",
    "LOCK TABLE tasks IN ROW SHARE MODE",
    "PREPARE TRANSACTION 'x'",
]
REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.NoActiveSqlTransaction)


@pytest.mark.parametrize("statement", OF_OTHERS + TO_OTHERS)
def test_what_tells_of_others_or_harms_them_is_refused(tenant: str, statement: str) -> None:
    with psycopg.connect(tenant, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        if "FROM pg_get_sequence_data" in statement and connection.info.server_version < 180_000:
            return  # there is none
        with pytest.raises(REFUSED):
            if statement.startswith(("LOCK", "PREPARE TRANSACTION")):
                connection.execute("BEGIN")
            connection.execute(statement.encode())
            if "VACUUM" in statement:  # without the right it warns, and does nothing
                raise psycopg.errors.InsufficientPrivilege


def test_what_psql_reads_of_the_catalog_stays(tenant: str) -> None:
    described = (
        "SELECT c.relname, c.relkind, c.relhasindex, c.relrowsecurity, pg_get_userbyid(c.relowner) FROM pg_class c WHERE relname = 'tasks'"
    )
    with psycopg.connect(tenant, autocommit=True) as connection:
        assert connection.execute(described.encode()).fetchall()
        assert connection.execute("SELECT column_name FROM information_schema.columns WHERE table_name = 'tasks'").fetchall()
        assert connection.execute("SELECT * FROM pg_tables WHERE tablename = 'tasks'").fetchall()


def test_settings_of_its_own_change_nothing_that_bounds_it(tenant: str) -> None:
    with psycopg.connect(tenant, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("ALTER ROLE CURRENT_USER RESET ALL")
        connection.execute("ALTER ROLE CURRENT_USER SET work_mem = '64GB'")
        connection.execute("RESET ALL")
    with psycopg.connect(tenant, autocommit=True) as connection:
        for name in ("temp_file_limit", "log_min_messages", "log_min_error_statement"):
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (SETTINGS[name],)
        connection.execute("ALTER ROLE CURRENT_USER RESET ALL")


def test_memory_that_a_statement_wants_is_refused_and_the_server_goes_on(tenant: str, owner: str) -> None:
    with psycopg.connect(tenant, autocommit=True) as connection, psycopg.connect(owner.replace("+psycopg", "")) as other:
        connection.execute("SET work_mem = '64GB'")
        connection.execute("SET statement_timeout = 0")
        with pytest.raises(psycopg.errors.OutOfMemory):
            connection.execute("SELECT count(*) FROM (SELECT repeat('x', 1000) || g FROM generate_series(1, 100000000) g ORDER BY 1) x")
        assert connection.execute("SELECT 1").fetchone() == other.execute("SELECT 1").fetchone()


def test_temporary_files_are_bounded(tenant: str) -> None:
    with psycopg.connect(tenant, autocommit=True) as connection, pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        connection.execute("SELECT count(*) FROM (SELECT repeat('x', 1000) || g FROM generate_series(1, 100000000) g ORDER BY 1) x")


async def test_long_transactions_and_idle_sessions_end_whatever_they_set(tenant: str, owner: str) -> None:
    app = await Database.connect(as_role(owner, servers.APP))
    mine = {"begun": "BEGIN", "sleeping": "SELECT pg_sleep(600)", "idle": "SELECT 1"}
    open_ones = {name: psycopg.connect(tenant, autocommit=True) for name in mine}
    for connection in open_ones.values():
        for name in ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout"):
            connection.execute(f"SET {name} = 0".encode())
    open_ones["begun"].execute("BEGIN")
    open_ones["begun"].execute("SELECT 1")
    open_ones["sleeping"].pgconn.send_query(b"SELECT pg_sleep(600)")
    async with app.transaction() as tx:
        assert await end_long_sessions(tx.connection) == []
    # A query that was sent may not have begun, and a session that was closed may not have ended.
    sessions = "SELECT count(*), count(xact_start) FROM pg_stat_activity a JOIN tenant_roles r ON r.role = a.usename"
    await eventually_equals(lambda: select(app, sessions), [(3, 2)])
    async with app.transaction() as tx:
        assert len(await end_long_sessions(tx.connection, transaction_s=0)) == 2
    assert open_ones["idle"].execute("SELECT 1").fetchone() == (1,)
    async with app.transaction() as tx:
        assert len(await end_long_sessions(tx.connection, idle_s=0)) == 1
    for name, statement in mine.items():
        if name != "sleeping":
            with pytest.raises(psycopg.OperationalError):
                open_ones[name].execute(statement.encode())
        open_ones[name].close()
    await app.close()


def test_right_to_end_sessions_costs_the_scheduler_nothing(tenant: str, owner: str) -> None:
    """It is a member of each tenant's role, whose policies PostgreSQL removes beside `true`."""
    with psycopg.connect(as_role(owner, servers.APP).replace("+psycopg", "")) as connection:
        plan = str(connection.execute("EXPLAIN (COSTS OFF) SELECT * FROM tasks").fetchall())
    assert "tenant_roles" not in plan and "Filter" not in plan, plan


def test_connections_are_left_for_the_services(tenant: str, owner: str) -> None:
    """The server keeps some for roles of the services, whatever all tenants together open."""
    with psycopg.connect(owner.replace("+psycopg", "")) as connection:
        assert connection.execute("SHOW reserved_connections").fetchone() == ("40",)
        roles = (
            "SELECT rolname FROM pg_roles WHERE pg_has_role(rolname, 'pg_use_reserved_connections', 'USAGE') AND rolname LIKE 'marlaas_%'"
        )
        assert {row[0] for row in connection.execute(roles)} == {servers.OWNER, servers.APP, servers.READER}
