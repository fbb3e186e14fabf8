"""Limits of a tenant, as data: the quantity limited, its range, its default, and what a tenant can do when it is reached.

A value belongs to one tenant, or to EVERY_TENANT: the default of all tenants without their own. Values are in PostgreSQL, so a change
takes effect with the next decision. The limits of connections and of a message's size are in the account's token; NATS enforces them.
"""

from dataclasses import dataclass
from typing import Literal

Limit = Literal[
    "priority_ceiling",
    "jobs_per_minute",
    "asks_per_minute",
    "max_tasks",
    "max_unchecked",
    "max_task_tokens",
    "max_sequences",
    "max_pool_sequences",
    "max_pool_tokens",
    "max_tokens",
    "max_stored_bytes",
    "max_adapters",
    "max_packages",
    "requests_per_minute",
    "key_requests_per_minute",
    "tokens_per_minute",
    "key_tokens_per_minute",
    "max_streams",
    "key_max_streams",
    "max_connections",
    "max_message_bytes",
]

NO_LIMIT = 2**63 - 1
"""Value stored for a tenant without the limit that others have by default."""


@dataclass(frozen=True)
class LimitKind:
    """One limit."""

    of: str
    """Quantity limited, worded to follow a number."""
    way_out: str
    """Advice for a tenant that has reached the limit."""
    default: int | None = None
    """Value until an operator sets another; None: no limit."""
    lowest: int = 0
    highest: int = NO_LIMIT - 1


ENDS = "cancel one, or wait until one ends"
FREES = "free some with `marlaas delete` or `marlaas prune`"

LIMITS: dict[Limit, LimitKind] = {
    "priority_ceiling": LimitKind("of a task's priority among its tenant's", "give a lower priority", lowest=-100, highest=100),
    "jobs_per_minute": LimitKind("jobs a minute", "send it later", 6_000),
    "asks_per_minute": LimitKind("asks a minute", "ask later", 60_000),
    "max_tasks": LimitKind("tasks that have not ended", ENDS),
    "max_unchecked": LimitKind("tasks whose environments are not checked yet", "wait until one is checked", 1_000),
    "max_task_tokens": LimitKind("tokens of one task (steps × groups × attempts × tokens)", "give fewer steps, groups or tokens"),
    "max_sequences": LimitKind("sequences in flight, over all pools", "wait until some end", lowest=1),
    "max_pool_sequences": LimitKind("sequences in flight in one pool", "wait until some end", lowest=1),
    "max_pool_tokens": LimitKind("tokens in flight in one pool", "wait until some end", lowest=1),
    "max_tokens": LimitKind("tokens in all, served ones included", "none: they are used"),
    "max_stored_bytes": LimitKind("bytes of adapters, checkpoints, batches, packages and files", FREES),
    "max_adapters": LimitKind("adapters that are kept", FREES),
    "requests_per_minute": LimitKind("HTTP requests a minute", "send it later"),
    "key_requests_per_minute": LimitKind("HTTP requests a minute of one key", "send it later"),
    "tokens_per_minute": LimitKind("served tokens a minute", "send it later"),
    "key_tokens_per_minute": LimitKind("served tokens a minute of one key", "send it later"),
    "max_streams": LimitKind("replies that are sampled concurrently", "wait until some end"),
    "key_max_streams": LimitKind("replies that are sampled concurrently for one key", "wait until some end"),
    "max_packages": LimitKind("packages and files, refused ones included", "delete some with `marlaas envs delete` or `files delete`", 100),
    "max_connections": LimitKind("concurrent connections to NATS", "close one", 64, lowest=1, highest=1_000_000),
    # A task may have 1 MiB, and its message is a little more.
    "max_message_bytes": LimitKind("bytes of one message", "send a smaller one", 1_310_720, lowest=1_024, highest=8 * 1024 * 1024),
}

OF_HTTP: tuple[Limit, ...] = (
    *("requests_per_minute", "key_requests_per_minute", "tokens_per_minute", "key_tokens_per_minute", "max_streams", "key_max_streams"),
)
"""Limits enforced by gateways; without a stored value, the gateway's settings apply."""
IN_ACCOUNT: tuple[Limit, ...] = ("max_connections", "max_message_bytes")
"""Limits in the token of the tenant's account."""


def sentence(limit: Limit, value: int, used: int, tenant: str, *, needed: int = 1, wait: str = "") -> str:
    """Text of a refusal: the limit, its value, the amount used, and advice. `needed`: amount of the request. `wait`: time until it fits."""
    kind = LIMITS[limit]
    of_it = f"{limit}: at most {value} {kind.of}, {used} are used" + (f" and {needed} more needed" if needed != 1 else "")
    return f"{of_it}; {kind.way_out}{wait}, or an operator raises it: marlaas tenants set {tenant} --limit {limit}={used + needed}"
