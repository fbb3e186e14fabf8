"""What was used, and what it costs."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from common.messages import BudgetOf, InvoiceLine, PriceOf, TaskUsage, TenantUsage

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet would compute."""


@dataclass(frozen=True)
class Total:
    kind: str
    quantity: int
    money: Decimal


@dataclass(frozen=True)
class UsagePage:
    lines: Sequence[InvoiceLine]
    """Latest day first."""
    totals: Sequence[Total]
    budgets: Sequence[BudgetOf]
    prices: Sequence[PriceOf]
    tenants: Sequence[TenantUsage]
    tasks: Sequence[TaskUsage]
    """Those with the most tokens first."""

    @property
    def has_accelerators(self) -> bool:
        """Whether any task used a shared accelerator."""
        return any(one.accelerator_ms for one in self.tasks)

    @property
    def money(self) -> Decimal:
        return sum((total.money for total in self.totals), Decimal(0))


def usage_page(
    lines: Sequence[InvoiceLine],
    budgets: Sequence[BudgetOf],
    prices: Sequence[PriceOf],
    tenants: Sequence[TenantUsage],
    tasks: Sequence[TaskUsage],
) -> UsagePage:
    totals = [_total(kind, [line for line in lines if line.kind == kind]) for kind in sorted({line.kind for line in lines})]
    latest = sorted(lines, key=lambda line: line.day, reverse=True)
    return UsagePage(latest, totals, budgets, prices, tenants, sorted(tasks, key=tokens, reverse=True))


def _total(kind: str, lines: Sequence[InvoiceLine]) -> Total:
    return Total(kind, sum(line.quantity for line in lines), sum((line.money for line in lines), Decimal(0)))


def tokens(task: TaskUsage) -> int:
    own = task.prompt_tokens + task.sampled_tokens + task.trained_tokens + task.evaluation_tokens
    return own + task.served_prompt_tokens + task.served_sampled_tokens


def as_csv(lines: Sequence[InvoiceLine]) -> str:
    """RFC 4180, by day. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["day", "tenant", "pool", "kind", "quantity", "money"])
    for line in lines:
        texts = [f"'{text}" if text.startswith(FORMULA) else text for text in (line.tenant, line.pool, line.kind)]
        writer.writerow([line.day.isoformat(), *texts, line.quantity, format(line.money, "f")])
    return out.getvalue()
