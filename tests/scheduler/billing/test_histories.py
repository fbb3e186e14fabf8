"""Random histories with kills: the ledger is what was counted, invoices are exact, budgets hold.

`python -m tests.scheduler.billing` runs more.
"""

import pytest

from scheduler_svc.base.database import Database
from tests.scheduler.billing.histories import History


@pytest.mark.parametrize("seed", range(3))
async def test_books_are_right_in_any_history(database: Database, seed: int) -> None:
    done = await History(database, seed).run(steps=80)
    assert done["kills"] and done["steps"] == 3 * 4
