"""Accounting: ledger rows for the consumption of ended groups, corrections of admission's charges, and initial virtual times."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages.tenancy.billing import LedgerKind
from scheduler_svc.base.states import VoidReason
from scheduler_svc.tenancy import shares
from scheduler_svc.tenancy.billing import ledger
from scheduler_svc.tenancy.billing.ledger import Entry
from scheduler_svc.tenancy.decisions.budgets import Payer, payer_of_void
from scheduler_svc.tenancy.shares import Charge
from scheduler_svc.training.decisions.admission import starting_virtual_time
from scheduler_svc.training.decisions.evaluation import is_group
from scheduler_svc.training.queries.groups import EndedGroup, VoidedGroups
from scheduler_svc.training.queries.tasks import Task


async def settle_accounts(
    connection: AsyncConnection, by_id: dict[str, Task], ended: Sequence[EndedGroup], *, void: VoidReason | None = None
) -> None:
    """Write ledger rows for the groups' consumption, and charge tasks and tenants the difference from the estimate.

    `void`: reason if the groups were voided or abandoned.
    """
    entries: list[Entry] = []
    for group in ended:
        tenant, payer = by_id[group.task].tenant, _payer(by_id[group.task], void)
        entries += [Entry(tenant, group.task, kind, group.number, used, payer) for kind, used in _usage(group).items()]
    await ledger.record_usage(connection, [entry for entry in entries if entry.tokens])
    await shares.charge(connection, [Charge(group.task, by_id[group.task].tenant, group.tokens - group.charged_tokens) for group in ended])


async def settle_void(connection: AsyncConnection, by_id: dict[str, Task], voided: VoidedGroups, reason: VoidReason) -> None:
    """As `settle_accounts`, for voided groups. Consumption that was recorded when a group became ready is forgiven if the tenant does not
    pay for `reason`."""
    await settle_accounts(connection, by_id, voided.ended, void=reason)
    await ledger.forgive(connection, [key for key in voided.complete if _payer(by_id[key[0]], reason) == "nobody"])


def _usage(group: EndedGroup) -> dict[LedgerKind, int]:
    if is_group(group.number):
        return {"evaluation": group.tokens, "env_ms": group.env_ms}
    return {"prompt": group.prompt_tokens, "sampled": group.sampled_tokens, "env_ms": group.env_ms}


def _payer(task: Task, void: VoidReason | None) -> Payer:
    return "tenant" if void is None else payer_of_void(void, task.spec.environment.name)


async def join_fair_queue(connection: AsyncConnection, task: Task) -> None:
    """Raise the virtual time of a task that starts to run to the minimum of its tenant's active tasks.

    If the tenant was idle, its own virtual time is raised to the minimum of active tenants.
    """
    others, siblings = await shares.virtual_times(connection, task.id, task.tenant)
    await shares.start_shares(
        connection,
        task.id,
        task.tenant,
        task_time=starting_virtual_time(task.virtual_time, siblings.active, siblings.past),
        # An active tenant's virtual time is unchanged: starting a second task gives no advantage.
        tenant_time=starting_virtual_time(0.0, others.active, others.past) if not siblings.active else 0.0,
    )
