"""A transaction that waits for PostgreSQL, and takes a lock so that two migrations cannot run concurrently."""

import time
from collections.abc import Callable

import structlog
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from common.resilience.backoff import Backoff

MIGRATION_LOCK = 7_300
PATIENCE_S = 60.0

log = structlog.get_logger()


def in_transaction(url: str, work: Callable[[Connection], None]) -> None:
    """Run `work` in a transaction. Raises: SystemExit, with one line, when PostgreSQL does not answer or refuses."""
    engine = create_engine(url, poolclass=NullPool)
    deadline = time.monotonic() + PATIENCE_S
    attempt = 0
    while True:
        try:
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
                work(connection)
            return
        except OperationalError as error:
            reason = str(error.orig).strip().splitlines()[-1]
            if time.monotonic() > deadline:
                raise SystemExit(f"migrate: gave up after {PATIENCE_S:.0f} s; correct MARLAAS_SCHEDULER_DATABASE_URL: {reason}") from None
            log.warning("postgres_unreachable", error=reason)
            attempt += 1
            time.sleep(Backoff(first_s=0.5, max_s=10.0).pause_s(attempt))
