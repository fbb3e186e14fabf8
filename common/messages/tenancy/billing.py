"""What work costs: prices and budgets, which operators set by jobs, and invoices, which are asked for (`messages/verbs.py`).

Money has no unit here: all prices are in the operator's one currency. Amounts are decimal numbers and travel as text, to the last digit.
Terms of a tenant are asked for by gateways, which share the use of its HTTP limits.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal, get_args

from pydantic import AwareDatetime, Field, PlainSerializer

from common.messages.base import Message, Value
from common.spec import TASK_ID_PATTERN, Name

TokenKind = Literal["prompt", "sampled", "trained", "evaluation"]
TOKEN_KINDS: tuple[TokenKind, ...] = get_args(TokenKind)
LedgerKind = Literal[TokenKind, "env_ms", "stored_byte_hours", "accelerator"]
"""What an entry of the ledger counts: tokens, milliseconds that an environment's processes worked, bytes stored for an hour, or
milliseconds of a shared accelerator."""
LEDGER_KINDS: tuple[LedgerKind, ...] = get_args(LedgerKind)
ServedKind = Literal["served_prompt", "served_sampled"]
"""Tokens of requests that were served. They are of no task's training: the tenant's `served_usage` has them."""
SERVED_KINDS: tuple[ServedKind, ...] = get_args(ServedKind)
Kind = Literal[LedgerKind, ServedKind]
"""What has a price."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Money = Annotated[Decimal, PlainSerializer(lambda amount: format(amount, "f"), return_type=str)]
Price = Annotated[Money, Field(ge=0, max_digits=30, decimal_places=18)]
Day = Annotated[date, PlainSerializer(date.isoformat, return_type=str)]
Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, return_type=str)]
Period = Literal["day", "month", "total"]
"""Of a budget, by UTC."""
Unit = Literal["tokens", "money"]


class SetPrice(Message, kind="set-price.1"):
    """Append a price; those that there are stay, since invoices refer to them. For operators. Harmless when repeated."""

    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    of: Kind
    pool: Name | None = None
    """None: of all pools without a price of their own."""
    price: Price
    per: Literal[1, 1_000, 1_000_000, 1_000_000_000, 1_000_000_000_000] = 1
    """Units of the kind that cost `price`."""
    valid_from: Moment | None = None
    """With its time zone; None: now. Never in the past."""


class SetBudget(Message, kind="set-budget.1"):
    """Set what a tenant may pay in a period, or remove that budget. For operators. Harmless when repeated."""

    tenant: Name
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    period: Period
    unit: Unit
    amount: Price | None
    """None: remove it."""


class AskBudgets(Message, kind="ask-budgets.1"):
    pass


class BudgetOf(Value):
    tenant: str
    period: Period
    unit: Unit
    amount: Money
    spent: Money
    """In the present period."""
    reserved: Money
    """Worst case of what is in flight."""


class BudgetsAnswer(Message, kind="budgets-answer.1"):
    budgets: list[BudgetOf]
    """By tenant, period and unit."""


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
    """By kind, pool and beginning; former ones included."""


class AskInvoice(Message, kind="ask-invoice.1"):
    first: Day | None = None
    """First day, in UTC; None: the first that there is."""
    last: Day | None = None
    """Last day."""
    cursor: int = Field(default=0, ge=0, lt=2**31)
    """`cursor` of the page before; 0 for the first."""


class InvoiceLine(Value):
    """Usage of a tenant on one day."""

    day: Day
    tenant: str
    pool: str
    """Empty for tasks that were deleted before invoices were kept by pool."""
    kind: str
    """As in the ledger; `void` for tokens, and `void_env_ms` for milliseconds, that nobody pays."""
    quantity: int
    money: Money


class InvoiceAnswer(Message, kind="invoice-answer.1"):
    lines: list[InvoiceLine]
    """By day, tenant, pool and kind; deleted tasks included."""
    cursor: int | None
    """For the next page; None on the last."""


class AskTerms(Message, kind="ask-terms.1"):
    pass


class SpentBudget(Value):
    """A budget, or the limit `max_tokens`, of which nothing is left."""

    unit: Unit
    period: Period
    amount: Money
    spent: Money
    until: Moment | None
    """When its next period begins; None: it has none."""


class TermsAnswer(Message, kind="terms-answer.1"):
    is_known: bool
    """Whether there is such a tenant, and it is not deleted."""
    weight: float = Field(default=1.0, gt=0)
    limits: dict[str, int | None] = {}
    """Limits of HTTP that an operator has set; None: without a limit."""
    spent: list[SpentBudget] = []


class SlotUse(Value):
    """What was used in one slot of a sliding minute."""

    slot: int
    """Unix time on NATS's clock, divided by the length of a slot."""
    requests: int = 0
    tokens: int = 0


class StreamsOf(Value):
    gateway: str
    streams: int
    until_s: float
    """Unix time; a gateway that has not renewed it by then has died."""


class HttpUse(Message, kind="http-use.1"):
    """Use of one tenant's limits, or of one key's, by all gateways, in the bucket `http-use`."""

    slots: list[SlotUse] = []
    streams: list[StreamsOf] = []
