"""What routes of a tenant's names share: aliases, webhooks."""

from collections.abc import Sequence
from typing import TypeVar

from common.client_api.errors import RULE, is_name
from gateway_svc.access.access import Caller
from gateway_svc.http.gateway import tenant_of
from gateway_svc.problems import FieldError, invalid, not_found

T = TypeVar("T")


def check_name(name: str, *, is_new: bool = False) -> None:
    """Raises: Problem for what cannot be such a name."""
    if not is_name(name):
        raise invalid(FieldError("name", RULE)) if is_new else not_found()


def only_one(caller: Caller, found: Sequence[T]) -> T:
    """Raises: Problem where there is none, or an admin names no tenant and several have one."""
    if not found:
        raise not_found()
    if len(found) > 1:
        tenant_of(caller)
    return found[0]
