"""Migrate the database to this version's schema: `python -m scheduler_svc.migrate`. Idempotent, also when run concurrently."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

import migrations


def alembic_config(url: str = "") -> Config:
    """Alembic's configuration, pointing at `migrations/`."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


@cache
def expected_revision() -> str:
    """The newest migration of this version."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


def migrate(url: str) -> None:
    """Apply missing migrations. Raises: SystemExit, with one line, when the database does not answer or is of a newer version."""
    try:
        command.upgrade(alembic_config(url), "head")
    except CommandError as error:
        raise SystemExit(
            f"migrate: the database was made by a newer version than this one, which ends at {expected_revision()}: {error}"
        ) from None


def main() -> None:
    from common.runtime.logs import configure_logs
    from common.runtime.settings import read_or_exit
    from scheduler_svc.settings import SchedulerSettings

    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    configure_logs("migrate", settings.replica, settings.log_level)
    migrate(settings.database_url)


if __name__ == "__main__":
    main()
