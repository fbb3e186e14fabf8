"""Alembic's entry: connects, takes a lock so that two migrations cannot run at once, and upgrades."""

import time

import structlog
from alembic import context
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from common.backoff import Backoff
from scheduler_svc.store.tables import metadata

MIGRATION_LOCK = 7_300
PATIENCE_S = 60.0

log = structlog.get_logger()


def run() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    assert url
    engine = create_engine(url, poolclass=NullPool)
    deadline = time.monotonic() + PATIENCE_S
    attempt = 0
    while True:
        try:
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
                context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
                context.run_migrations()
            return
        except OperationalError as error:
            reason = str(error.orig).strip().splitlines()[-1]
            if time.monotonic() > deadline:
                raise SystemExit(f"migrate: gave up after {PATIENCE_S:.0f} s; correct MARLAAS_SCHEDULER_DATABASE_URL: {reason}") from None
            log.warning("postgres_unreachable", error=reason)
            attempt += 1
            time.sleep(Backoff(first_s=0.5, max_s=10.0).pause_s(attempt))


run()
