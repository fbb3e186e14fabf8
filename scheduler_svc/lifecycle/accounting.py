"""Accounting: ledger rows for the tokens of ended groups, and the correction of what their admission was charged."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.store.queries import evaluations, ledger, shares
from scheduler_svc.store.queries.groups import EndedGroup
from scheduler_svc.store.queries.ledger import Entry
from scheduler_svc.store.queries.shares import Charge
from scheduler_svc.store.queries.tasks import Task


async def charge_evaluation(connection: AsyncConnection, by_id: dict[str, Task], ended: Sequence[evaluations.EvaluatedGroup]) -> None:
    """Ledger rows for what evaluation groups consumed, and the difference to their charge."""
    entries = [Entry(by_id[group.task].tenant, group.task, "evaluation", group.number, group.tokens) for group in ended if group.tokens]
    await ledger.record_usage(connection, entries)
    await shares.charge(connection, [Charge(group.task, by_id[group.task].tenant, group.tokens - group.charged_tokens) for group in ended])


async def settle_accounts(connection: AsyncConnection, by_id: dict[str, Task], ended: Sequence[EndedGroup]) -> None:
    """Ledger rows for what training groups consumed, and the difference to their charge."""
    entries = [Entry(by_id[group.task].tenant, group.task, "prompt", group.number, group.prompt_tokens) for group in ended]
    entries += [Entry(by_id[group.task].tenant, group.task, "sampled", group.number, group.sampled_tokens) for group in ended]
    await ledger.record_usage(connection, [entry for entry in entries if entry.tokens])
    await shares.charge(
        connection,
        [
            Charge(group.task, by_id[group.task].tenant, group.prompt_tokens + group.sampled_tokens - group.charged_tokens)
            for group in ended
        ],
    )
