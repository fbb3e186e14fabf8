"""Accounts and keys as an operator records them, and the bucket from which gateways know HTTP keys."""

from collections.abc import Iterable, Sequence

from common import streams
from common.messages import SetAccess
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.tenancy import keys
from scheduler_svc.tenancy.keys import Effect, RecordedHttpKey

SUSPENSIONS = ("suspend-tenant", "end-suspension")


async def set_access(tx: Transaction, request: SetAccess) -> list[Effect]:
    """Record it, and tell gateways; returns what it has changed. Raises: Reject with the reason; nothing of it is recorded then."""
    async with tx.connection.begin_nested():
        effects = await keys.set_access(tx.connection, request)
    if any(effect.verb in SUSPENSIONS for effect in effects):
        post_http_keys(tx, await keys.http_keys(tx.connection, tenant=request.tenant))
    else:
        await _post_changed(tx, effects)
    return effects


async def revoke_all(tx: Transaction, tenant: str) -> list[Effect]:
    """Revoke the keys of a tenant that is deleted. NATS learns of it from the operator's command."""
    effects = await keys.revoke_all(tx.connection, tenant)
    await _post_changed(tx, effects)
    return effects


def post_http_keys(tx: Transaction, found: Iterable[RecordedHttpKey]) -> None:
    """Publish those that are valid, and remove the others."""
    for each in found:
        subject = streams.value_subject(streams.HTTP_KEYS_BUCKET, each.value.digest)
        if each.is_valid:
            tx.post([OutboxMessage(subject, each.value, "", as_json=True)])
        else:
            tx.outbox.post_encoded(subject, b"", "", {"KV-Operation": "DEL"})


async def _post_changed(tx: Transaction, effects: Sequence[Effect]) -> None:
    if effects:
        post_http_keys(tx, await keys.http_keys(tx.connection, of=[effect.target for effect in effects]))
