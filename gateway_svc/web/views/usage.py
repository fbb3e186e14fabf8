"""Usage and its cost."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from common.messages import BudgetOf, InvoiceLine, PriceOf, TaskUsage, TenantUsage
from common.messages.asks import Usage
from common.messages.tenancy.billing import TOKEN_KINDS, Kind
from gateway_svc.web.views.charts import Paged, paged

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet would evaluate."""
NAMES: Mapping[Kind | Literal["void", "void_env_ms"], str] = {
    "prompt": "Prompt tokens",
    "sampled": "Sampled tokens",
    "trained": "Trained tokens",
    "evaluation": "Tokens of evaluations",
    "served_prompt": "Served: prompt tokens",
    "served_sampled": "Served: sampled tokens",
    "env_ms": "Environments, milliseconds",
    "accelerator": "Shared accelerators, milliseconds",
    "stored_byte_hours": "Storage, bytes × hours",
    "void": "Tokens of void groups, not billed",
    "void_env_ms": "Environments of void groups, milliseconds, not billed",
}
"""Kind in the ledger → label; unknown kinds of a newer scheduler are shown by their own name."""
TOKENS = ["#Prompt", "#Sampled", "#Trained", "#Evaluation", "#Served"]
"""Token columns, in the format of the macro `table`."""


@dataclass(frozen=True)
class Total:
    kind: str
    quantity: int
    money: Decimal


@dataclass(frozen=True)
class Used:
    """A row of the table of tasks."""

    task: str
    tokens: tuple[int, ...]
    """Token counts in the order of TOKENS."""
    accelerator_ms: int
    stored_bytes: int


@dataclass(frozen=True)
class UsagePage:
    days: Paged[InvoiceLine]
    """Latest day first."""
    totals: Sequence[Total]
    budgets: Sequence[BudgetOf]
    prices: Sequence[PriceOf]
    tasks: Paged[Used]
    """Tasks, most tokens first."""
    others: Used
    """Usage without an existing task: base models, packages, deleted tasks."""
    all: Used

    @property
    def has_accelerators(self) -> bool:
        """Whether any task used a shared accelerator."""
        return self.all.accelerator_ms > 0

    @property
    def money(self) -> Decimal:
        return sum((total.money for total in self.totals), Decimal(0))


@dataclass(frozen=True)
class Ledger:
    """The scheduler's answers about usage."""

    lines: Sequence[InvoiceLine]
    budgets: Sequence[BudgetOf]
    prices: Sequence[PriceOf]
    tenants: Sequence[TenantUsage]
    tasks: Sequence[TaskUsage]


def usage_page(found: Ledger, *, days: int = 1, tasks: int = 1) -> UsagePage:
    """Build the page. `days`, `tasks`: page numbers of these tables."""
    lines = found.lines
    totals = [_total(kind, [line for line in lines if line.kind == kind]) for kind in sorted({line.kind for line in lines})]
    used = sorted((_used(one.task, [one]) for one in found.tasks), key=lambda one: sum(one.tokens), reverse=True)
    of_tasks, of_tenants = _used("", found.tasks), _used("", found.tenants)
    return UsagePage(
        days=paged(sorted(lines, key=lambda line: line.day, reverse=True), days),
        totals=totals,
        budgets=found.budgets,
        prices=found.prices,
        tasks=paged(used, tasks),
        others=_between(of_tasks, of_tenants),
        all=of_tenants,
    )


def _total(kind: str, lines: Sequence[InvoiceLine]) -> Total:
    return Total(kind, sum(line.quantity for line in lines), sum((line.money for line in lines), Decimal(0)))


def _used(task: str, of: Sequence[Usage]) -> Used:
    """Sum of usage as one row."""
    own = [sum(getattr(one, f"{kind}_tokens") for one in of) for kind in TOKEN_KINDS]
    served = sum(one.served_prompt_tokens + one.served_sampled_tokens for one in of)
    return Used(task, (*own, served), sum(one.accelerator_ms for one in of), sum(one.stored_bytes for one in of))


def _between(part: Used, whole: Used) -> Used:
    """Usage in `whole` that `part` lacks; at least 0, as a task may have continued between the two answers."""
    tokens = tuple(max(of - own, 0) for own, of in zip(part.tokens, whole.tokens, strict=True))
    return Used("", tokens, max(whole.accelerator_ms - part.accelerator_ms, 0), max(whole.stored_bytes - part.stored_bytes, 0))


def as_csv(lines: Sequence[InvoiceLine]) -> str:
    """CSV by RFC 4180, by day. Texts that a spreadsheet would evaluate get a leading apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["day", "tenant", "pool", "kind", "quantity", "money"])
    for line in lines:
        texts = [f"'{text}" if text.startswith(FORMULA) else text for text in (line.tenant, line.pool, line.kind)]
        writer.writerow([line.day.isoformat(), *texts, line.quantity, format(line.money, "f")])
    return out.getvalue()
