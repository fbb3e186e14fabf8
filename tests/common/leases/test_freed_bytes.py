"""What a park has freed is read from the kernel while the executor still has the accelerator."""

from pathlib import Path

import pytest

from common.accelerators import Tier
from common.bus import Bus
from common.leases import moves
from common.leases.locks import holders
from tests.support.leases.executables import answer, begun, followers, order
from tests.support.waiting import at_work


async def test_freed_bytes_are_read_before_the_next_executor_may_compute(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computing: list[bool] = []
    private = iter([500, 200])

    def read() -> int:
        computing.append(holders(tmp_path).computing)
        return next(private)

    monkeypatch.setattr(moves, "private_bytes", read)
    [(one, _)] = followers(bus, tmp_path, "one")
    async with at_work(one.run()):
        await begun(bus)
        for epoch, tier, freed in ((1, Tier.DEVICE, None), (3, Tier.HOST, 300)):
            await order(bus, "one", epoch, wake=True)
            await answer(bus, "one", epoch)
            await order(bus, "one", epoch + 1, wake=False, tier=tier)
            assert (await answer(bus, "one", epoch + 1)).freed_bytes == freed
    assert computing == [True, True], "nothing is freed by a park to the device, and nothing read"
