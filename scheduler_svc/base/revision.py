"""Alembic's configuration, and the newest migration of this version."""

from functools import cache
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

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
