"""Location of the project's data files: pools.toml, the tiny base model, the examples."""

import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
KNOWN_BY = "pools.toml"


def root() -> Path:
    """The checkout, or the environment's folder where a wheel installs them (`data-files` in pyproject.toml)."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    installed = (Path(sysconfig.get_path("data", scheme)) / "share" / "marlaas" for scheme in schemes)
    return next((folder for folder in (CHECKOUT, *installed) if (folder / KNOWN_BY).exists()), CHECKOUT)
