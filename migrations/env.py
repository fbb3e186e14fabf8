"""Alembic's entry: connects, takes a lock so that two migrations cannot run concurrently, and upgrades."""

from alembic import context
from sqlalchemy import Connection

from migrations.transaction import in_transaction


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, transactional_ddl=True)
    context.run_migrations()


url = context.config.get_main_option("sqlalchemy.url")
assert url
in_transaction(url, migrate)
