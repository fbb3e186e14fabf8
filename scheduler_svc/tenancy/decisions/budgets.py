"""Budgets: whether a tenant can pay for the worst case of another group; and who pays for work that trained nothing. Pure.

A budget of a tenant bounds, for a day, a month or in all, what it pays, in tokens or money. What is open reserves its worst case:
every attempt as long as the task allows, sampled and, unless it is of an evaluation, trained, and its environment at work until the
group's deadline. A group is admitted where spent, reserved and its own worst case fit; so what is paid for groups never exceeds a budget.
Beyond it may only be what no group decides: stored bytes, and a price that rises while work is in flight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from common.messages.tenancy.billing import Period, Unit

NEARLY = Decimal("0.8")
"""Share of a budget from which on an event warns its tenant."""


@dataclass(frozen=True)
class GroupBound:
    """Maximum of what a group uses."""

    tokens: int
    env_ms: int = 0
    """Milliseconds that its environment works: each attempt until the deadline."""


@dataclass(frozen=True)
class UnitPrices:
    """The highest prices in one pool, now or later: of a token, and of a millisecond of an environment."""

    sampled: Decimal = Decimal(0)
    """In a prompt or sampled, whichever costs more."""
    trained: Decimal = Decimal(0)
    evaluated: Decimal = Decimal(0)
    env_ms: Decimal = Decimal(0)

    def worst_case(self, group: GroupBound, *, evaluates: bool) -> Decimal:
        """Money for a group within the bound."""
        return group.tokens * (self.evaluated if evaluates else self.sampled + self.trained) + group.env_ms * self.env_ms


NO_PRICES = UnitPrices()


@dataclass(frozen=True)
class Budget:
    """One budget in its present period."""

    tenant: str
    period: Period
    unit: Unit
    amount: Decimal
    spent: Decimal
    reserved: Decimal
    """Worst case of what is in flight."""
    is_moving: bool = False
    """Whether groups of the tenant are open or with a trainer, so that `reserved` will become less by itself."""
    reported: str = ""
    """What was reported of it in this period."""

    @property
    def left(self) -> Decimal:
        return self.amount - self.spent - self.reserved

    @property
    def is_nearly_spent(self) -> bool:
        return self.spent >= NEARLY * self.amount

    def cost(self, group: GroupBound, prices: UnitPrices, *, evaluates: bool) -> Decimal:
        """Worst case of a group within the bound, in this budget's unit."""
        if self.unit == "money":
            return prices.worst_case(group, evaluates=evaluates)
        return Decimal(group.tokens if evaluates else 2 * group.tokens)


@dataclass(frozen=True)
class Purse:
    """All budgets of one tenant, and the prices of the pools where it has tasks."""

    budgets: Sequence[Budget]
    prices: Mapping[str, UnitPrices]

    def refusing(self, pool: str, group: GroupBound, *, evaluates: bool) -> Budget | None:
        """The budget that a group within the bound does not fit; None where it fits all."""
        prices = self.prices.get(pool, NO_PRICES)
        return next((one for one in self.budgets if one.cost(group, prices, evaluates=evaluates) > one.left), None)

    def objection(self, pool: str, group: GroupBound, *, evaluates: bool) -> tuple[Budget, str] | None:
        """That budget, and why a task with such a next group is paused."""
        budget = self.refusing(pool, group, evaluates=evaluates)
        if budget is None:
            return None
        needed = budget.cost(group, self.prices.get(pool, NO_PRICES), evaluates=evaluates)
        of_what = {"day": f"{budget.unit} a day", "month": f"{budget.unit} a month", "total": f"{budget.unit} in all"}[budget.period]
        used = f"spent {_text(budget.spent)}, in flight at most {_text(budget.reserved)}"
        return budget, f"budget: {_text(budget.amount)} {of_what}; {used}, and the next group needs at most {_text(needed)}"

    def after(self, pool: str, group: GroupBound, *, evaluates: bool) -> "Purse":
        """The purse once such a group is open."""
        prices = self.prices.get(pool, NO_PRICES)
        reserved = [replace(one, reserved=one.reserved + one.cost(group, prices, evaluates=evaluates)) for one in self.budgets]
        return replace(self, budgets=reserved)


def _text(amount: Decimal) -> str:
    """Without trailing zeros or an exponent."""
    written = format(amount, "f")
    return written.rstrip("0").rstrip(".") if "." in written else written


Payer = Literal["tenant", "nobody"]

NOT_OF_THE_TASK = frozenset({"failed", "deadline", "stale"})
"""Reasons of void work that a task does not cause by what it learns, or that its owner did not ask for."""


def payer_of_void(reason: str, environment: str) -> Payer:
    """Who pays for a void group of a task with this environment.

    Failures of an operator's environment, an installed entry point, are the operator's, like those of the services. A tenant pays for
    what its own code (`module:attribute`) breaks, for groups of equal rewards, and for work that it cancels.
    """
    is_own = ":" in environment
    return "tenant" if is_own or reason not in NOT_OF_THE_TASK else "nobody"
