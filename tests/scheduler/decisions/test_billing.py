"""Who pays for work that trained nothing."""

import pytest

from scheduler_svc.base.states import VoidReason
from scheduler_svc.tenancy.decisions.budgets import Payer, payer_of_void


@pytest.mark.parametrize(
    ("reason", "of_operator", "of_tenant"),
    [
        (VoidReason.FAILED, "nobody", "tenant"),
        (VoidReason.DEADLINE, "nobody", "tenant"),
        (VoidReason.STALE, "nobody", "tenant"),
        (VoidReason.CANCELLED, "tenant", "tenant"),
        (VoidReason.ZERO_VARIANCE, "tenant", "tenant"),
    ],
)
def test_a_tenant_pays_for_its_own_code_and_its_own_decisions(reason: VoidReason, of_operator: Payer, of_tenant: Payer) -> None:
    assert payer_of_void(reason, "calculator") == of_operator
    assert payer_of_void(reason, "their_package.games:Chess") == of_tenant
