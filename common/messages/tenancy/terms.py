"""Terms of a tenant, which gateways ask for, and the use of its HTTP limits, which they share."""

from pydantic import Field

from common.messages.base import Message, Value
from common.messages.tenancy.billing import Moment, Money, Period, Unit


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
