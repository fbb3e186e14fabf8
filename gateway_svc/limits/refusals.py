"""Answers about limits and budgets: problems, and headers in OpenAI's formats. Pure."""

import math
from collections.abc import Mapping

from common.limits import Limit, sentence
from common.messages import SpentBudget
from gateway_svc.limits.account import LimitMet, Standing
from gateway_svc.limits.preparation_slots import TooBusy
from gateway_svc.limits.window import RATES, Kind, Rate
from gateway_svc.problems import FieldError, Problem

RETRY_AFTER_S = 2
"""Seconds after which a request may be retried while usage is unknown."""
NAMES: dict[Kind, tuple[Limit, Limit]] = {
    "requests": ("requests_per_minute", "key_requests_per_minute"),
    "tokens": ("tokens_per_minute", "key_tokens_per_minute"),
    "streams": ("max_streams", "key_max_streams"),
}
"""Kind → name of the tenant's limit, and of the limit of each of its keys."""


def too_many(met: LimitMet, tenant: str, *, of_key: bool) -> Problem:
    """429: the limit, its value, the usage, and when the request fits; a request that never fits should not be retried."""
    limit = NAMES[met.kind][of_key]
    never = math.isinf(met.wait_s)
    retry_s = 60 if never else max(1, math.ceil(met.wait_s))
    wait = ": this request never fits" if never else f" in {retry_s} s"
    detail = sentence(limit, met.allowed, met.used, tenant, needed=met.needed, wait=wait)
    headers = {"Retry-After": str(retry_s)} | ({"x-should-retry": "false"} if never else {})
    return Problem(429, "Too many requests", detail, "rate_limited", headers=headers)


def store_unavailable() -> Problem:
    detail = "usage of the limits is unknown: NATS's store does not answer; retry later"
    return Problem(503, "Unavailable", detail, "limits_unavailable", headers={"Retry-After": str(RETRY_AFTER_S)})


def too_busy(busy: TooBusy) -> Problem:
    wait_s = math.ceil(busy.wait_s)
    detail = f"{busy}; send it again in {wait_s} s, and send smaller requests"
    return Problem(429, "Too many requests", detail, "rate_limited", headers={"Retry-After": str(wait_s)})


def budget_spent(spent: SpentBudget) -> Problem:
    """402: names the used-up budget, its amount, and until when it stays used up."""
    period = {"day": " a day", "month": " a month", "total": " in all"}[spent.period]
    until = f"until {spent.until.isoformat()}" if spent.until is not None else "until an operator raises it"
    detail = f"the budget of {spent.amount:f} {spent.unit}{period} is used up, {until}: {spent.spent:f} are spent"
    return Problem(402, "Budget used up", detail, "budget_used_up")


def no_tenant(tenant: str) -> Problem:
    reason = f"no tenant '{tenant}'; there is one from its first task on, or when an operator makes it"
    return Problem(404, "Not found", reason, "tenant_not_found", [FieldError("tenant", reason)])


def headers_of(standings: Mapping[Rate, Standing]) -> dict[str, str]:
    """`x-ratelimit-…` headers for each rate that has a limit."""
    found: dict[str, str] = {}
    for rate in RATES:
        if (standing := standings.get(rate)) is not None:
            found[f"x-ratelimit-limit-{rate}"] = str(standing.limit)
            found[f"x-ratelimit-remaining-{rate}"] = str(standing.remaining)
            found[f"x-ratelimit-reset-{rate}"] = duration(standing.reset_s)
    return found


def duration(seconds: float) -> str:
    """Duration in OpenAI's format: `6m0s`, `1s`, `120ms`."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    minutes, whole = divmod(math.ceil(ms / 1000), 60)
    return f"{minutes}m{whole}s" if minutes else f"{whole}s"
