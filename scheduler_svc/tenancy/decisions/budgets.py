"""Budgets: whether a tenant can pay for the worst case of another group; and the payer of void work. Pure.

A budget limits what a tenant pays, in tokens or money, for a day, a month or in total. Work in flight reserves its worst case:
every attempt at its maximum length, sampled and, except in evaluations, trained, and its environment busy until the
group's deadline. A group is admitted if spent, reserved and its own worst case fit, so payments for groups never exceed a budget.
Only costs outside of groups can exceed it: stored bytes, and price increases while work is in flight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from common.messages.tenancy.billing import Period, Unit

NEARLY = Decimal("0.8")
"""Spent share of a budget at which an event warns its tenant."""


@dataclass(frozen=True)
class GroupBound:
    """Maximum usage of a group."""

    tokens: int
    env_ms: int = 0
    """Milliseconds of environment time: each attempt until the deadline."""


@dataclass(frozen=True)
class UnitPrices:
    """Maximum current or future prices in one pool: per token, and per millisecond of an environment."""

    sampled: Decimal = Decimal(0)
    """Per prompt or sampled token, whichever costs more."""
    trained: Decimal = Decimal(0)
    evaluated: Decimal = Decimal(0)
    env_ms: Decimal = Decimal(0)

    def worst_case(self, group: GroupBound, *, evaluates: bool) -> Decimal:
        """Maximum cost in money of a group within the bound."""
        return group.tokens * (self.evaluated if evaluates else self.sampled + self.trained) + group.env_ms * self.env_ms


NO_PRICES = UnitPrices()


@dataclass(frozen=True)
class Budget:
    """One budget in its current period."""

    tenant: str
    period: Period
    unit: Unit
    amount: Decimal
    spent: Decimal
    reserved: Decimal
    """Worst case of work in flight."""
    is_moving: bool = False
    """Whether the tenant has open groups or steps at a trainer, so that `reserved` will decrease."""
    reported: str = ""
    """Last level reported in this period."""

    @property
    def left(self) -> Decimal:
        return self.amount - self.spent - self.reserved

    @property
    def is_nearly_spent(self) -> bool:
        return self.spent >= NEARLY * self.amount

    def cost(self, group: GroupBound, prices: UnitPrices, *, evaluates: bool) -> Decimal:
        """Worst-case cost of a group within the bound, in this budget's unit."""
        if self.unit == "money":
            return prices.worst_case(group, evaluates=evaluates)
        return Decimal(group.tokens if evaluates else 2 * group.tokens)


@dataclass(frozen=True)
class Purse:
    """All budgets of one tenant, and the prices of the pools where it has tasks."""

    budgets: Sequence[Budget]
    prices: Mapping[str, UnitPrices]

    def refusing(self, pool: str, group: GroupBound, *, evaluates: bool) -> Budget | None:
        """The first budget that a group within the bound does not fit; None if it fits all."""
        prices = self.prices.get(pool, NO_PRICES)
        return next((one for one in self.budgets if one.cost(group, prices, evaluates=evaluates) > one.left), None)

    def objection(self, pool: str, group: GroupBound, *, evaluates: bool) -> tuple[Budget, str] | None:
        """The refusing budget, and the reason for pausing a task whose next group is within the bound; None if it fits."""
        budget = self.refusing(pool, group, evaluates=evaluates)
        if budget is None:
            return None
        needed = budget.cost(group, self.prices.get(pool, NO_PRICES), evaluates=evaluates)
        of_what = {"day": f"{budget.unit} a day", "month": f"{budget.unit} a month", "total": f"{budget.unit} in all"}[budget.period]
        used = f"spent {_text(budget.spent)}, in flight at most {_text(budget.reserved)}"
        return budget, f"budget: {_text(budget.amount)} {of_what}; {used}, and the next group needs at most {_text(needed)}"

    def after(self, pool: str, group: GroupBound, *, evaluates: bool) -> "Purse":
        """The purse after a group within the bound is opened."""
        prices = self.prices.get(pool, NO_PRICES)
        reserved = [replace(one, reserved=one.reserved + one.cost(group, prices, evaluates=evaluates)) for one in self.budgets]
        return replace(self, budgets=reserved)


def _text(amount: Decimal) -> str:
    """Decimal text without trailing zeros or an exponent."""
    written = format(amount, "f")
    return written.rstrip("0").rstrip(".") if "." in written else written


Payer = Literal["tenant", "nobody"]

NOT_OF_THE_TASK = frozenset({"failed", "deadline", "stale"})
"""Void reasons that are not caused by a task's learning or its owner's request."""


def payer_of_void(reason: str, environment: str) -> Payer:
    """Payer of a void group of a task with this environment.

    The operator bears the cost of failures of services and of its own environments (installed entry points). A tenant pays for failures of
    its own code (`module:attribute`), for groups of equal rewards, and for work that it cancels.
    """
    is_own = ":" in environment
    return "tenant" if is_own or reason not in NOT_OF_THE_TASK else "nobody"
