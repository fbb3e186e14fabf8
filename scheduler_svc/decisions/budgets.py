"""Budgets: whether a tenant can pay for the worst case of another group. Pure.

A budget of a tenant bounds, for a day, a month or in all, what it pays, in tokens or money. What is open reserves its worst case:
every attempt as long as the task allows, sampled and, unless it is of an evaluation, trained. A group is admitted where spent, reserved
and its own worst case fit; so what is paid for groups never exceeds a budget. Beyond it may only be what no group decides: stored bytes,
the time of environments, and a price that rises while work is in flight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from common.messages.billing import Period, Unit

NEARLY = Decimal("0.8")
"""Share of a budget from which on an event warns its tenant."""


@dataclass(frozen=True)
class TokenPrices:
    """The highest prices of a token in one pool, now or later."""

    sampled: Decimal = Decimal(0)
    """In a prompt or sampled, whichever costs more."""
    trained: Decimal = Decimal(0)
    evaluated: Decimal = Decimal(0)

    def worst_case(self, tokens: int, *, evaluates: bool) -> Decimal:
        """Money for a group of at most so many tokens."""
        return tokens * (self.evaluated if evaluates else self.sampled + self.trained)


NO_PRICES = TokenPrices()


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

    @property
    def left(self) -> Decimal:
        return self.amount - self.spent - self.reserved

    @property
    def is_nearly_spent(self) -> bool:
        return self.spent >= NEARLY * self.amount

    def cost(self, tokens: int, prices: TokenPrices, *, evaluates: bool) -> Decimal:
        """Worst case of a group of at most so many tokens, in this budget's unit."""
        if self.unit == "money":
            return prices.worst_case(tokens, evaluates=evaluates)
        return Decimal(tokens if evaluates else 2 * tokens)


@dataclass(frozen=True)
class Purse:
    """All budgets of one tenant, and the prices of the pools where it has tasks."""

    budgets: Sequence[Budget]
    prices: Mapping[str, TokenPrices]

    def refusing(self, pool: str, tokens: int, *, evaluates: bool) -> Budget | None:
        """The budget that a group of at most so many tokens does not fit; None where it fits all."""
        prices = self.prices.get(pool, NO_PRICES)
        return next((one for one in self.budgets if one.cost(tokens, prices, evaluates=evaluates) > one.left), None)

    def after(self, pool: str, tokens: int, *, evaluates: bool) -> "Purse":
        """The purse once such a group is open."""
        prices = self.prices.get(pool, NO_PRICES)
        reserved = [replace(one, reserved=one.reserved + one.cost(tokens, prices, evaluates=evaluates)) for one in self.budgets]
        return replace(self, budgets=reserved)


def sentence(budget: Budget, needed: Decimal) -> str:
    """Why a task is paused."""
    of_what = {"day": f"{budget.unit} a day", "month": f"{budget.unit} a month", "total": f"{budget.unit} in all"}[budget.period]
    used = f"spent {_text(budget.spent)}, in flight at most {_text(budget.reserved)}"
    return f"budget: {_text(budget.amount)} {of_what}; {used}, and the next group needs at most {_text(needed)}"


def _text(amount: Decimal) -> str:
    """Without trailing zeros or an exponent."""
    written = format(amount, "f")
    return written.rstrip("0").rstrip(".") if "." in written else written
