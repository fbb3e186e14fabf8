"""Costs: prices and budgets, set by operators' jobs, and invoices, read by questions (`messages/verbs.py`).

Money has no unit here: all prices are in the operator's single currency. Amounts are decimal numbers, sent as text to keep every digit.
Gateways ask for a tenant's terms, and share the use of its HTTP limits.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal, get_args

from pydantic import AwareDatetime, Field, PlainSerializer

from common.messages.base import Message, Value
from common.messages.jobs import TenantRequest
from common.spec import TASK_ID_PATTERN, Name

TokenKind = Literal["prompt", "sampled", "trained", "evaluation"]
TOKEN_KINDS: tuple[TokenKind, ...] = get_args(TokenKind)
LedgerKind = Literal[TokenKind, "env_ms", "stored_byte_hours", "accelerator"]
"""Quantity counted by a ledger entry: tokens, milliseconds that an environment's processes worked, bytes stored for an hour, or
milliseconds of a shared accelerator.
"""
LEDGER_KINDS: tuple[LedgerKind, ...] = get_args(LedgerKind)
ServedKind = Literal["served_prompt", "served_sampled"]
"""Tokens of served requests. They belong to no task's training: the tenant's `served_usage` has them."""
SERVED_KINDS: tuple[ServedKind, ...] = get_args(ServedKind)
Kind = Literal[LedgerKind, ServedKind]
"""Quantities that can have a price."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Money = Annotated[Decimal, PlainSerializer(lambda amount: format(amount, "f"), return_type=str)]
Price = Annotated[Money, Field(ge=0, max_digits=30, decimal_places=18)]
Day = Annotated[date, PlainSerializer(date.isoformat, return_type=str)]
Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, return_type=str)]
Period = Literal["day", "month", "total"]
"""Period of a budget, in UTC."""
Unit = Literal["tokens", "money"]


class SetPrice(Message, kind="set-price.1"):
    """Append a price; earlier ones are kept, because invoices refer to them. For operators. Idempotent."""

    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id chosen by the sender, repeated in the answer."""
    of: Kind
    pool: Name | None = None
    """None: price for all pools without their own."""
    price: Price
    per: Literal[1, 1_000, 1_000_000, 1_000_000_000, 1_000_000_000_000] = 1
    """Units of the kind that cost `price`."""
    valid_from: Moment | None = None
    """With its time zone; None: now. Never in the past."""


class SetBudget(TenantRequest, Message, kind="set-budget.1"):
    """Set a tenant's budget for a period, or remove it. For operators. Idempotent."""

    period: Period
    unit: Unit
    amount: Price | None
    """None: remove the budget."""


class AskBudgets(Message, kind="ask-budgets.1"):
    pass


class BudgetOf(Value):
    tenant: str
    period: Period
    unit: Unit
    amount: Money
    spent: Money
    """Amount spent in the current period."""
    reserved: Money
    """Maximum cost of work in flight."""


class BudgetsAnswer(Message, kind="budgets-answer.1"):
    budgets: list[BudgetOf]
    """Budgets by tenant, period and unit."""


class AskPrices(Message, kind="ask-prices.1"):
    pass


class PriceOf(Value):
    of: Kind
    pool: str | None
    price: Price
    per: int
    valid_from: Moment


class PricesAnswer(Message, kind="prices-answer.1"):
    prices: list[PriceOf]
    """Prices by kind, pool and start; past ones included."""


class AskInvoice(Message, kind="ask-invoice.1"):
    first: Day | None = None
    """First day, in UTC; None: the earliest with usage."""
    last: Day | None = None
    """Last day, in UTC."""
    cursor: int = Field(default=0, ge=0, lt=2**31)
    """`cursor` of the previous page; 0 for the first page."""


class InvoiceLine(Value):
    """Usage of a tenant on one day."""

    day: Day
    tenant: str
    pool: str
    """Empty for stored bytes of uploads, which belong to no pool."""
    kind: str
    """As in the ledger; `void` for tokens, and `void_env_ms` for milliseconds, that are not billed."""
    quantity: int
    money: Money


class InvoiceAnswer(Message, kind="invoice-answer.1"):
    lines: list[InvoiceLine]
    """Lines by day, tenant, pool and kind; deleted tasks included."""
    cursor: int | None
    """Cursor for the next page; None on the last."""


class AskTerms(Message, kind="ask-terms.1"):
    pass


class SpentBudget(Value):
    """An exhausted budget, or an exhausted limit `max_tokens`."""

    unit: Unit
    period: Period
    amount: Money
    spent: Money
    until: Moment | None
    """When its next period begins; None: never."""


class TermsAnswer(Message, kind="terms-answer.1"):
    is_known: bool
    """Whether the tenant exists and is not deleted."""
    weight: float = Field(default=1.0, gt=0)
    limits: dict[str, int | None] = {}
    """HTTP limits set by an operator; None: no limit."""
    spent: list[SpentBudget] = []


class SlotUse(Value):
    """Use in one slot of a sliding minute."""

    slot: int
    """Index: Unix time on NATS's clock, divided by the length of a slot."""
    requests: int = 0
    tokens: int = 0


class StreamsOf(Value):
    gateway: str
    streams: int
    until_s: float
    """Unix time of expiry; a gateway that has not renewed it by then has died."""


class HttpUse(Message, kind="http-use.1"):
    """Use of one tenant's limits, or of one key's, by all gateways, in the bucket `http-use`."""

    slots: list[SlotUse] = []
    streams: list[StreamsOf] = []
