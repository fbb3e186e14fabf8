"""Connections to PostgreSQL: connect with retries, run transactions, hold advisory locks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Self

import psycopg
import structlog
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

import migrations
from common.errors import Unavailable
from common.resilience.backoff import Backoff
from common.resilience.event_loop import cancellation_kept
from scheduler_svc.base.transaction import Transaction


def alembic_config(url: str = "") -> Config:
    """Alembic's configuration, pointing at `migrations/`."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


@cache
def expected_revision() -> str:
    """Newest migration known to this version."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


RELAY_LOCK = 7_301
"""Advisory lock of the replica that relays the outbox, which keeps messages in order."""
ADMISSION_LOCK = 7_302
"""Advisory lock of admission, so that concurrent admissions do not both use the same capacity."""
SLICES_LOCK = 7_303
"""Advisory lock of the replica that decides about shared accelerators."""
HOMES_LOCK = 7_304
"""Advisory lock of a review of tasks' homes."""

CONNECT = Backoff(first_s=0.4, max_s=30.0)
PATIENCE_S = 20.0
"""Default time limit of a transaction in seconds: transactions take milliseconds, and a dead connection raises no error."""
CANCEL_S = 3.0
"""Time limit of a cancellation in seconds: psycopg asks the server to cancel, and waits for the answer."""
UNREACHABLE = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
"""Connection errors of SQLAlchemy, and of psycopg for statements that bypass SQLAlchemy (`base/sql.py`)."""
PREPARED = {"prepare_threshold": 0, "options": "-c plan_cache_mode=force_generic_plan"}
"""Each connection parses and plans a statement once. By default PostgreSQL plans a statement with lists of tasks at every execution, which
takes as long as running it."""
MIGRATE = "run `python -m scheduler_svc.migrate` of this version"

log = structlog.get_logger()


class Database:
    """Connection pool. Lost connections are replaced; a statement on one raises Unavailable."""

    def __init__(self, engine: AsyncEngine, patience_s: float, cancel_s: float) -> None:
        self._engine = engine
        self._committing = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._patience_s = patience_s
        self._cancel_s = cancel_s

    @classmethod
    async def connect(cls, url: str, *, patience_s: float = PATIENCE_S, cancel_s: float = CANCEL_S) -> "Database":
        """Wait until PostgreSQL answers with this version's schema; log the obstacle and its remedy while waiting."""
        engine = create_async_engine(
            url,
            pool_size=8,
            max_overflow=8,
            pool_use_lifo=True,  # concentrates work on few connections, which have its statements prepared
            hide_parameters=True,  # logs outlive data that users delete
            connect_args=PREPARED,
        )
        shown = make_url(url).render_as_string(hide_password=True)
        attempt = 0
        while True:
            try:
                async with engine.connect() as connection:
                    revision = await _revision(connection)
                if revision == expected_revision():
                    return cls(engine, patience_s, cancel_s)
                attempt += 1
                log.error("schema_differs", url=shown, attempt=attempt, present=revision, needed=expected_revision(), correct=MIGRATE)
            except OperationalError as error:
                reason = str(error.orig).strip().splitlines()[-1]
                attempt += 1
                if any(word in reason for word in ("password", "authentication", "does not exist")):
                    log.error("postgres_refuses", url=shown, attempt=attempt, error=reason, correct="MARLAAS_SCHEDULER_DATABASE_URL")
                else:
                    log.warning("postgres_unreachable", url=shown, attempt=attempt, error=reason)
            await asyncio.sleep(CONNECT.pause_s(attempt))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.close())

    async def close(self) -> None:
        await self._engine.dispose()

    async def check_schema(self) -> None:
        """Raises: Unavailable if a newer version has migrated the schema, since this version cannot write its rows."""
        async with self.statements() as connection:
            if (present := await _revision(connection)) != expected_revision():
                raise Unavailable(f"the schema is of another version: {present}, not {expected_revision()}")

    @asynccontextmanager
    async def transaction(self, *, patience_s: float | None = None) -> AsyncGenerator[Transaction]:
        """A transaction with its outbox. `patience_s`: its time limit, if it may take longer than usual.

        Raises: Unavailable if the connection is lost or a deadlock aborts it.
        """
        async with self._within(patience_s), self._engine.begin() as connection:
            tx = Transaction(connection)
            yield tx
            await tx.write_outbox()

    @asynccontextmanager
    async def statements(self, *, patience_s: float | None = None) -> AsyncGenerator[AsyncConnection]:
        """A connection in autocommit mode. Each statement sees earlier commits, as in a transaction at READ COMMITTED, but the two round
        trips to begin and commit a transaction are saved. Raises: Unavailable if the connection is lost.
        """
        async with self._within(patience_s), self._committing.begin() as connection:
            yield connection

    @asynccontextmanager
    async def _within(self, patience_s: float | None) -> AsyncGenerator[None]:
        try:
            async with self.patience(patience_s):
                yield
        except TimeoutError:
            raise Unavailable(f"PostgreSQL did not answer within {patience_s or self._patience_s:g} s") from None
        except UNREACHABLE as error:
            raise _unavailable(error) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise Unavailable(f"PostgreSQL connection lost: {error.orig}") from error
            raise

    @asynccontextmanager
    async def alone(self, lock: int) -> AsyncGenerator[AsyncConnection]:
        """A connection that holds a session-level advisory lock; waits while another replica holds the lock. Each statement commits itself.

        The lock lasts as long as the connection, so work under the lock must use this connection.
        Raises: Unavailable if PostgreSQL is unavailable.
        """
        try:
            async with AsyncExitStack() as closing:
                with cancellation_kept():
                    connection = await closing.enter_async_context(self._committing.connect())
                while not await self._locked(connection, lock):  # noqa: ASYNC110  another process can only be polled
                    await asyncio.sleep(1.0)
                try:
                    yield connection
                finally:
                    await connection.invalidate()  # a pooled connection would keep the lock
        except UNREACHABLE as error:
            raise _unavailable(error) from error

    async def _locked(self, connection: AsyncConnection, lock: int) -> bool:
        async with self.patience(), connection.begin():
            return bool((await connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": lock})).scalar_one())

    @asynccontextmanager
    async def patience(self, patience_s: float | None = None) -> AsyncGenerator[None]:
        """Time limit of the block, enforced even while psycopg waits for the server to cancel. Raises: TimeoutError."""
        patience_s = patience_s or self._patience_s
        async with asyncio.timeout(patience_s + self._cancel_s), asyncio.timeout(patience_s):
            with cancellation_kept():
                yield


def _unavailable(error: BaseException) -> Unavailable:
    """Unavailable with the text of the first error in the chain: a later one, such as of a failed rollback, is only a consequence."""
    while isinstance(error.__context__, UNREACHABLE):
        error = error.__context__
    return Unavailable(f"PostgreSQL: {str(getattr(error, 'orig', error)).strip()}")


async def _revision(connection: AsyncConnection) -> str:
    """Newest applied migration; empty if none was applied."""
    # Unreadable if absent, or just created: a migration grants rights in its last transaction.
    readable = text("SELECT coalesce(has_table_privilege(to_regclass('alembic_version'), 'SELECT'), false)")
    present = (await connection.execute(readable)).scalar_one()
    return (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar_one_or_none() or "" if present else ""
