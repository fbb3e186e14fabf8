"""Ids of tasks, which clients make. One of a tenant's ends in the tenant's mark, so that no other tenant can make it (ADR 43)."""

import hashlib
import secrets

MARK_DIGITS = 10
NAME_CHARS = 39


def mark_of(tenant: str) -> str:
    """Hexadecimal digits that follow from the tenant's name alone."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:MARK_DIGITS]


def marked(begin: str, tenant: str) -> str:
    """The id that a tenant makes of `begin`."""
    return f"{begin}-{mark_of(tenant)}"


def is_marked(task: str, tenant: str) -> bool:
    return task.endswith(f"-{mark_of(tenant)}")


def new_task_id(name: str, tenant: str) -> str:
    """An unused id: the task's name, 48 random bits, and the tenant's mark."""
    return marked(f"{name[:NAME_CHARS]}-{secrets.token_hex(6)}", tenant)
