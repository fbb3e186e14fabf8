"""Random histories of two tenants, compared with a model of who may see what.

`python -m tests.scheduler.ask` runs more.
"""

from pathlib import Path

import pytest

from common.bus import Bus
from tests.scheduler.ask.histories import begun


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_each_tenant_sees_its_own_and_no_byte_of_the_other(
    bus: Bus, nats_url: str, database_url: str, tmp_path: Path, seed: int
) -> None:
    async with begun(bus, nats_url, database_url, tmp_path, seed) as history:
        done = await history.run(steps=20)
    assert done["answers"] > 500 and done["events"] and done["control"]
