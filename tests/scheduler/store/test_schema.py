"""Migrations and the code's tables and views describe one schema."""

import json

from alembic import command
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from scheduler_svc.migrate import migrate
from scheduler_svc.revision import alembic_config
from scheduler_svc.store.views import VIEWS

_INSERT_TASK = text(
    "INSERT INTO tasks (id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness, "
    "trajectory_tokens, admitted, voided) VALUES (:task, 'acme', :task, 'tiny', CAST(:spec AS jsonb), :state, 0, 1, 2, 2, 0, 9, 1, 1)"
)


def test_migrations_build_the_tables_that_the_code_describes(owner_url: str) -> None:
    command.check(alembic_config(owner_url))


def test_views_are_those_of_the_code(owner_url: str) -> None:
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        for name, query in VIEWS.items():
            definition = text("SELECT pg_get_viewdef(:name ::regclass)")
            before = connection.execute(definition, {"name": name}).scalar_one()
            connection.execute(text(f"CREATE OR REPLACE VIEW {name} AS {query}"))
            assert connection.execute(definition, {"name": name}).scalar_one() == before, name


def test_second_migration_changes_nothing(owner_url: str) -> None:
    migrate(owner_url)
    command.check(alembic_config(owner_url))


def test_downgrade_leaves_nothing_behind(owner_url: str) -> None:
    command.downgrade(alembic_config(owner_url), "base")
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        left = connection.execute(
            text("SELECT relname FROM pg_class WHERE relkind IN ('r', 'v') AND relnamespace = 'public'::regnamespace")
        )
        assert left.scalars().all() == ["alembic_version"]


def test_rows_that_only_a_newer_schema_allows_survive_its_downgrade(owner_url: str) -> None:
    config = alembic_config(owner_url)
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        connection.execute(_INSERT_TASK, {"task": "a", "state": "running", "spec": "{}"})
        connection.execute(
            text(
                "INSERT INTO groups (task, number, version, state, void_reason, row, seed, charged_tokens, deadline_at) "
                "VALUES ('a', 0, 0, 'void', 'zero_variance', 0, 0, 0, now())"
            )
        )
    command.downgrade(config, "0001")
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        assert connection.execute(text("SELECT void_reason FROM groups")).scalar_one() == "stale"
    command.upgrade(config, "head")
    command.check(config)


def test_evaluations_from_before_protocols_belong_to_the_only_one(owner_url: str) -> None:
    config = alembic_config(owner_url)
    command.downgrade(config, "0013")
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        connection.execute(_INSERT_TASK, {"task": "a", "state": "running", "spec": "{}"})
        connection.execute(text("INSERT INTO evaluations (task, version, state) VALUES ('a', 0, 'running')"))
        connection.execute(
            text("INSERT INTO evaluation_groups (task, number, version, prompt, size, state) VALUES ('a', 1000000000, 0, 0, 1, 'planned')")
        )
    command.upgrade(config, "head")
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        found = connection.execute(text("SELECT protocol FROM evaluations UNION ALL SELECT protocol FROM evaluation_groups"))
        assert found.scalars().all() == ["main", "main"]


def test_of_several_protocols_a_downgrade_keeps_the_one_that_decides(owner_url: str) -> None:
    config = alembic_config(owner_url)
    stored = {"evaluation": {"every": 5, "decide_by": "mean", "protocol": [{"name": "a"}, {"name": "b"}]}, "stop": {"patience": 3}}
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        connection.execute(_INSERT_TASK, {"task": "x", "state": "running", "spec": json.dumps(stored)})
        for number, protocol in enumerate("ab"):
            row = {"protocol": protocol, "number": 1_000_000_000 + number}
            for statement in (
                "INSERT INTO evaluations (task, version, protocol, state) VALUES ('x', 0, :protocol, 'finished')",
                "INSERT INTO evaluation_groups (task, number, version, protocol, prompt, size, state) "
                "VALUES ('x', :number, 0, :protocol, 0, 1, 'ended')",
                "INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES ('acme', 'x', 'evaluation', :number, 5)",
                "INSERT INTO events (tenant, task, event, data) "
                "VALUES ('acme', 'x', 'evaluation', jsonb_build_object('version', 0, 'protocol', CAST(:protocol AS text)))",
            ):
                connection.execute(text(statement), row)
    command.downgrade(config, "0013")
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        for table in ("evaluations", "evaluation_groups", "ledger", "events"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 1, table
        assert connection.execute(text("SELECT data ->> 'protocol' FROM events")).scalar_one() == "a"
        assert connection.execute(text("SELECT number FROM evaluation_groups")).scalar_one() == 1_000_000_000
        assert connection.execute(text("SELECT spec FROM tasks")).scalar_one() == {"evaluation": {"every": 5}, "stop": {}}
    command.upgrade(config, "head")
    command.check(config)
