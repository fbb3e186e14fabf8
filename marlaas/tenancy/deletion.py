"""Tenants deleted: their keys are refused first, then all that is stored of them goes, then their account."""

from pydantic import JsonValue

from common.client_api.errors import ClientError
from common.client_api.tenancy.tenants import delete_tenant
from common.resilience import crashpoints
from marlaas.tenancy import accounts, recording
from marlaas.tenancy.recording import Operator


async def delete_with_account(operator: Operator, name: str, timeout_s: float) -> dict[str, JsonValue]:
    """The receipt. An interrupted command is completed by repeating it: the account goes, and the error says what became of the rest.

    Raises: ClientError when there is no such tenant, or it is deleted already; NoAnswer.
    """
    access = await recording.read(operator.door, name)
    if access is not None and access.account is not None and not access.deleted:
        await recording.record(operator.door, name, revoke=[one.key for one in access.keys if one.revoked is None])
        crashpoints.reached("before_push")
        await accounts.push_tenant(operator, name)
    try:
        receipt = await delete_tenant(operator.door, name, timeout_s)
    except ClientError:
        if access is not None and access.deleted:
            await accounts.remove_account(operator, name)
        raise
    crashpoints.reached("before_account_removed")
    await accounts.remove_account(operator, name)
    return receipt
