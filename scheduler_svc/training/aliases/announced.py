"""The bucket from which rollout replicas know aliases."""

from collections.abc import Iterable

from common import streams
from common.messages import alias_key
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.training.aliases import queries as aliases
from scheduler_svc.training.aliases.queries import Alias


def post_aliases(tx: Transaction, found: Iterable[Alias]) -> None:
    """Publish aliases as they are once the transaction is committed."""
    tx.post([OutboxMessage(streams.value_subject(streams.ALIASES_BUCKET, each.known.key), each.known, "", as_json=True) for each in found])


def post_removal(tx: Transaction, tenant: str, name: str) -> None:
    """Publish that there is no such alias."""
    tx.outbox.post_encoded(streams.value_subject(streams.ALIASES_BUCKET, alias_key(tenant, name)), b"", "", {"KV-Operation": "DEL"})


async def remove_all(tx: Transaction, tenant: str) -> None:
    """Delete all aliases of a tenant."""
    for name in await aliases.remove_all(tx.connection, tenant):
        post_removal(tx, tenant, name)
