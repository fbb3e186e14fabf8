"""The migrations and the code's tables and views describe one schema."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from scheduler_svc.base import rights
from scheduler_svc.base.views import VIEWS
from scheduler_svc.migrate import migrate

# Names are unqualified, since the schema is on the search path.
_COLUMNS = """
SELECT relname, relpersistence::text, attname, format_type(atttypid, atttypmod), attnotnull, attidentity::text, pg_get_expr(adbin, adrelid)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relkind = 'r' AND attnum > 0 AND NOT attisdropped AND relname <> 'alembic_version' AND relnamespace = current_schema()::regnamespace
"""
_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE contype <> 'n' AND conname <> 'alembic_version_pkc' AND connamespace = current_schema()::regnamespace
"""
_INDEXES = """
SELECT pg_get_indexdef(indexrelid, 0, true)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE relname <> 'alembic_version_pkc' AND relnamespace = current_schema()::regnamespace
"""


@pytest.fixture
def owner(owner_url: str) -> Iterator[Connection]:
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        yield connection


def described(connection: Connection, query: str, schema: str) -> set[tuple[object, ...]]:
    connection.execute(text(f"SET LOCAL search_path TO {schema}"))
    return {tuple(row) for row in connection.execute(text(query))}


def test_migrations_build_the_tables_that_the_code_describes(owner: Connection) -> None:
    owner.execute(text("CREATE SCHEMA of_the_code"))
    metadata = rights.tenant_roles.metadata  # with this table it is complete
    metadata.create_all(owner.execution_options(schema_translate_map={None: "of_the_code"}))
    for query in (_COLUMNS, _CONSTRAINTS, _INDEXES):
        assert described(owner, query, "public") == described(owner, query, "of_the_code")


def test_views_are_those_of_the_code(owner: Connection) -> None:
    definition = text("SELECT pg_get_viewdef(:name ::regclass)")
    for name, query in VIEWS.items():
        before = owner.execute(definition, {"name": name}).scalar_one()
        owner.execute(text(f"CREATE OR REPLACE VIEW {name} AS {query}"))
        assert owner.execute(definition, {"name": name}).scalar_one() == before, name
    views = owner.execute(text("SELECT viewname FROM pg_views WHERE schemaname = 'public'")).scalars()
    assert set(views) == set(VIEWS)


def test_second_migration_changes_nothing(owner_url: str) -> None:
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        before = described(connection, _COLUMNS, "public")
    migrate(owner_url)
    with create_engine(owner_url, poolclass=NullPool).begin() as connection:
        assert described(connection, _COLUMNS, "public") == before
