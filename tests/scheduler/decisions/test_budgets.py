"""Whether a tenant can pay for another group: at the bound, one below, one above."""

from decimal import Decimal

import pytest

from scheduler_svc.tenancy.decisions.budgets import Budget, GroupBound, Purse, Unit, UnitPrices
from scheduler_svc.tenancy.decisions.shares import Capacity, TaskShare, TenantShare
from scheduler_svc.training.decisions.admission import groups_to_admit

PRICES = {"p": UnitPrices(Decimal(2), Decimal(3), Decimal(7), Decimal(11))}


def budget(amount: int, unit: Unit = "tokens", *, spent: int = 0, reserved: int = 0) -> Budget:
    return Budget("acme", "month", unit, Decimal(amount), Decimal(spent), Decimal(reserved))


@pytest.mark.parametrize(
    ("unit", "evaluates", "cost"),
    [("tokens", False, 20), ("tokens", True, 10), ("money", False, 10 * (2 + 3) + 4 * 11), ("money", True, 10 * 7 + 4 * 11)],
)
def test_a_group_fits_where_its_worst_case_does(unit: Unit, evaluates: bool, cost: int) -> None:
    for amount, fits in ((cost - 1, False), (cost, True), (cost + 1, True)):
        purse = Purse([budget(amount + 12, unit, spent=5, reserved=7)], PRICES)
        assert (purse.refusing("p", GroupBound(10, 4), evaluates=evaluates) is None) == fits
        after = purse.after("p", GroupBound(10, 4), evaluates=evaluates)
        assert after.budgets[0].left == amount - cost
    assert Purse([budget(0, "money")], PRICES).refusing("free", GroupBound(10, 4), evaluates=evaluates) is None


def test_every_budget_must_allow_it() -> None:
    wide, narrow = budget(10**6), budget(49, "money")
    purse = Purse([wide, narrow], PRICES)
    assert purse.refusing("p", GroupBound(10), evaluates=False) == narrow
    refusing, why = purse.objection("p", GroupBound(10), evaluates=False) or (None, "")
    assert refusing == narrow and "month" in why and "needs at most 50" in why


@pytest.mark.parametrize(("spent", "nearly"), [(79, False), (80, True), (81, True)])
def test_a_budget_is_nearly_spent_from_four_fifths_on(spent: int, nearly: bool) -> None:
    assert budget(100, spent=spent).is_nearly_spent == nearly


@pytest.mark.parametrize(("amount", "admitted"), [(0, 0), (39, 0), (40, 1), (79, 1), (80, 2), (81, 2)])
def test_admission_stops_at_a_budget_and_others_go_on(amount: int, admitted: int) -> None:
    tasks = [TaskShare(f"{tenant}-a", tenant, "p", 0, 0.0, 9, 2, 20.0, 20.0) for tenant in ("acme", "globex")]
    tenants = {tenant: TenantShare(tenant, 1.0, 0.0) for tenant in ("acme", "globex")}
    tenants["acme"].purse = Purse([budget(amount)], {})
    decision = groups_to_admit(tasks, tenants, {"p": Capacity(1000, 10**6)}, {}, limit=8)
    assert sum(one.task == "acme-a" for one in decision.groups) == admitted
    assert len(decision.groups) == 8
    assert decision.limited_tenants == {"acme"}
