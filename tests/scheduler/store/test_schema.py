"""Migrations and the code's tables and views describe one schema."""

from alembic import command
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from scheduler_svc.migrate import alembic_config, migrate
from scheduler_svc.store.views import VIEWS


def test_migrations_build_the_tables_that_the_code_describes(database_url: str) -> None:
    command.check(alembic_config(database_url))


def test_views_are_those_of_the_code(database_url: str) -> None:
    with create_engine(database_url, poolclass=NullPool).begin() as connection:
        for name, query in VIEWS.items():
            definition = text("SELECT pg_get_viewdef(:name ::regclass)")
            before = connection.execute(definition, {"name": name}).scalar_one()
            connection.execute(text(f"CREATE OR REPLACE VIEW {name} AS {query}"))
            assert connection.execute(definition, {"name": name}).scalar_one() == before, name


def test_second_migration_changes_nothing(database_url: str) -> None:
    migrate(database_url)
    command.check(alembic_config(database_url))


def test_downgrade_leaves_nothing_behind(database_url: str) -> None:
    command.downgrade(alembic_config(database_url), "base")
    with create_engine(database_url, poolclass=NullPool).begin() as connection:
        left = connection.execute(
            text("SELECT relname FROM pg_class WHERE relkind IN ('r', 'v') AND relnamespace = 'public'::regnamespace")
        )
        assert left.scalars().all() == ["alembic_version"]


def test_rows_that_only_a_newer_schema_allows_survive_its_downgrade(database_url: str) -> None:
    config = alembic_config(database_url)
    with create_engine(database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        connection.execute(
            text(
                "INSERT INTO tasks (id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness, "
                "trajectory_tokens, admitted, voided) VALUES ('a', 'acme', 'a', 'tiny', '{}', 'running', 0, 1, 2, 2, 0, 9, 1, 1)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO groups (task, number, version, state, void_reason, row, seed, charged_tokens, deadline_at) "
                "VALUES ('a', 0, 0, 'void', 'zero_variance', 0, 0, 0, now())"
            )
        )
    command.downgrade(config, "0001")
    with create_engine(database_url, poolclass=NullPool).begin() as connection:
        assert connection.execute(text("SELECT void_reason FROM groups")).scalar_one() == "stale"
    command.upgrade(config, "head")
    command.check(config)
