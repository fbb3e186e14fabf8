"""Alembic's entry: connects, takes a lock so that two migrations cannot run at once, and upgrades."""

from alembic import context
from sqlalchemy import Connection

from migrations.transaction import in_transaction
from scheduler_svc.store import access  # with its table, the schema is complete
from scheduler_svc.store.tables import metadata

assert access.tenant_roles.metadata is metadata


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    context.run_migrations()


url = context.config.get_main_option("sqlalchemy.url")
assert url
in_transaction(url, migrate)
