"""The trainer as a process."""

from pathlib import Path

from tests.support.keyed import Keyed
from tests.support.services import without_settings


def environment(keyed: Keyed, pools_file: Path, **more: str) -> dict[str, str]:
    own = {"MARLAAS_NATS_URL": keyed.url, "MARLAAS_NATS_CREDS": str(keyed.keys.credentials("trainer"))}
    own |= {"MARLAAS_POOLS_FILE": str(pools_file), "MARLAAS_TRAINER_POOL": "tiny"}
    return without_settings() | own | more
