"""Budgets: jobs that set them, spending in the current period, the worst case of work in flight, and answers to asks.

A budget applies from the next admission. A tenant's payments are the sum of those for its tasks, its deleted tasks, its packages' bytes,
and served tokens; triggers keep the totals of tasks. A budget's row stores that sum as of the start of its period, so that only the query
that begins a period reads the ledger.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal

import structlog
from sqlalchemy import TextClause, delete, literal_column, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.errors import Reject
from common.messages import AskBudgets, AskTerms, BudgetOf, BudgetsAnswer, SetBudget, SpentBudget, TermsAnswer, as_json
from common.messages.tenancy.billing import SERVED_KINDS, TOKEN_KINDS, Period, Unit
from scheduler_svc.base.tables import budgets, tasks
from scheduler_svc.tenancy import limits
from scheduler_svc.tenancy.decisions.budgets import Budget, GroupBound, Purse, UnitPrices
from scheduler_svc.tenancy.question import Question
from scheduler_svc.tenancy.requests import Answering, Refusal
from scheduler_svc.tenancy.tenants import find_tenant, weight_of

log = structlog.get_logger()

_TOKEN_KINDS, _PAID_TOKENS = str(TOKEN_KINDS), str((*TOKEN_KINDS, *SERVED_KINDS))
"""SQL lists of kinds: a Python tuple of strings has the same syntax."""
_DEADLINE_MS = "ceil((t.spec #>> '{limits,episode_timeout_s}')::float8 * 1000)::bigint"
_BEGINS = (
    "CASE b.period WHEN 'total' THEN '-infinity'::timestamptz ELSE date_trunc(b.period, now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' END"
)
_EVERY, _SOME = "IN (SELECT tenant FROM budgets)", "= ANY(CAST(:tenants AS text[]))"
"""Conditions that select all tenants with a budget, or the given ones."""
_PAID = """
    SELECT tenant, sum(tokens) AS tokens, sum(money) AS money FROM (
        SELECT tenant, sum(paid_tokens) AS tokens, sum(paid_money) AS money FROM tasks
        WHERE tenant {of} GROUP BY tenant
        UNION ALL
        SELECT tenant, sum(quantity) FILTER (WHERE kind IN {token_kinds}), sum(money) FROM deleted_usage
        WHERE tenant {of} GROUP BY tenant
        UNION ALL
        SELECT tenant, NULL, sum(money) FROM package_usage WHERE tenant {of} GROUP BY tenant
        UNION ALL
        SELECT tenant, sum(quantity), sum(money) FROM served_usage WHERE tenant {of} GROUP BY tenant) of_all
    GROUP BY tenant"""
_IN_PERIOD = f"""
    SELECT coalesce(sum(CASE b.unit WHEN 'money' THEN i.money ELSE i.quantity END), 0) FROM tenant_invoice i
    WHERE i.tenant = b.tenant AND i.day >= ({_BEGINS} AT TIME ZONE 'UTC')::date AND (b.unit = 'money' OR i.kind IN {_PAID_TOKENS})"""
_BEGIN_PERIODS = text(f"""
WITH paid AS ({_PAID.format(of=_EVERY, token_kinds=_TOKEN_KINDS)})
UPDATE budgets b SET begins_at = {_BEGINS}, reported = '',
    before = CASE b.period WHEN 'total' THEN 0
             ELSE coalesce((SELECT CASE b.unit WHEN 'money' THEN p.money ELSE p.tokens END FROM paid p WHERE p.tenant = b.tenant), 0)
                  - ({_IN_PERIOD}) END
WHERE begins_at < {_BEGINS}
""")


def _standing(of: str) -> TextClause:
    return text(f"""
WITH paid AS ({_PAID.format(of=of, token_kinds=_TOKEN_KINDS)}),
highest AS (
    SELECT p.pool, k.kind, coalesce(max(price), 0) AS each
    FROM (SELECT DISTINCT pool FROM tasks WHERE tenant {of} AND state IN ('submitted', 'running', 'paused')) p
    CROSS JOIN (VALUES ('prompt'), ('sampled'), ('trained'), ('evaluation'), ('env_ms')) k (kind)
    LEFT JOIN LATERAL (
        SELECT unit_price(k.kind, p.pool, now()) AS price
        UNION ALL SELECT unit_price(k.kind, p.pool, later.valid_from) FROM prices later
        WHERE later.valid_from > now() AND later.kind = k.kind
    ) prices ON true GROUP BY p.pool, k.kind),
pools AS (
    SELECT pool, max(each) FILTER (WHERE kind IN ('prompt', 'sampled')) AS sampled, max(each) FILTER (WHERE kind = 'trained') AS trained,
           max(each) FILTER (WHERE kind = 'evaluation') AS evaluated,
           max(each) FILTER (WHERE kind = 'env_ms') AS env_ms FROM highest GROUP BY pool),
live AS (
    SELECT t.tenant, t.pool,
           sum(t.group_size::bigint * t.trajectory_tokens * g.open) AS to_sample,
           sum(t.group_size::bigint * t.trajectory_tokens * g.live) AS to_train,
           sum(t.trajectory_tokens::bigint * g.attempts) AS to_evaluate,
           sum(({_DEADLINE_MS}) * (t.group_size * g.open + g.attempts)) AS to_work_ms,
           bool_or(g.open + g.batched + g.attempts > 0) AS moving
    FROM tasks t
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE protocol IS NULL) AS live, count(*) FILTER (WHERE protocol IS NULL AND state = 'open') AS open,
               count(*) FILTER (WHERE state = 'batched') AS batched,
               coalesce(sum(size) FILTER (WHERE protocol IS NOT NULL), 0) AS attempts
        FROM groups WHERE task = t.id AND state IN ('open', 'ready', 'batched')) g
    WHERE t.tenant {of} AND t.state IN ('running', 'paused') GROUP BY t.tenant, t.pool),
reserved AS (
    SELECT l.tenant, sum(l.to_sample + l.to_train + l.to_evaluate) AS tokens,
           sum(l.to_sample * p.sampled + l.to_train * p.trained + l.to_evaluate * p.evaluated + l.to_work_ms * p.env_ms) AS money,
           bool_or(l.moving) AS moving
    FROM live l JOIN pools p ON p.pool = l.pool GROUP BY l.tenant)
SELECT b.tenant, b.period, b.unit, b.amount, b.reported, coalesce(r.moving, false) AS moving,
       coalesce(CASE b.unit WHEN 'money' THEN p.money ELSE p.tokens END, 0) - b.before AS spent,
       coalesce(CASE b.unit WHEN 'money' THEN r.money ELSE r.tokens END, 0) AS reserved,
       (SELECT json_object_agg(pool, json_build_array(sampled::text, trained::text, evaluated::text, env_ms::text)) FROM pools) AS prices
FROM budgets b LEFT JOIN paid p ON p.tenant = b.tenant LEFT JOIN reserved r ON r.tenant = b.tenant
WHERE b.tenant {of} ORDER BY b.tenant, b.period, b.unit
""")


_USED_UP = text(f"""
WITH paid AS ({_PAID.format(of=_SOME, token_kinds=_TOKEN_KINDS)}),
standing AS (
    SELECT b.unit, b.period, b.amount, b.begins_at,
           coalesce(CASE b.unit WHEN 'money' THEN p.money ELSE p.tokens END, 0) - b.before AS spent
    FROM budgets b LEFT JOIN paid p ON p.tenant = b.tenant
    WHERE b.tenant {_SOME} AND b.begins_at >= {_BEGINS})
SELECT unit, period, amount, spent,
       CASE period WHEN 'day' THEN begins_at AT TIME ZONE 'UTC' + interval '1 day'
                   WHEN 'month' THEN begins_at AT TIME ZONE 'UTC' + interval '1 month' END AT TIME ZONE 'UTC' AS until
FROM standing WHERE spent >= amount ORDER BY period, unit
""")


_STANDINGS, _STANDINGS_OF_SOME = _standing(_EVERY), _standing(_SOME)


@dataclass(frozen=True)
class Standings:
    """Usage of the budgets of all tenants, or of some."""

    found: list[Budget]
    prices: Mapping[str, UnitPrices]

    @property
    def purses(self) -> dict[str, Purse]:
        """Budgets and prices by tenant, for tenants with a budget."""
        by_tenant: dict[str, list[Budget]] = {}
        for one in self.found:
            by_tenant.setdefault(one.tenant, []).append(one)
        return {tenant: Purse(own, self.prices) for tenant, own in by_tenant.items()}


async def set_budget(answer: Answering, request: SetBudget) -> None:
    """Handle a job of `jobs.set-budget.<tenant>`. Raises: Refusal."""
    connection = answer.tx.connection
    if await find_tenant(connection, request.tenant) is None:
        raise Refusal(f"tenant: no tenant '{request.tenant}'; there is one from its first task on")
    await put_budget(connection, request.tenant, request.period, request.unit, request.amount)
    await begin_periods(connection)
    given = {name: value for name, value in as_json(request).items() if name in ("period", "unit", "amount")}
    answer.accept(request.tenant, given, given)
    log.info("budget_set", tenant=request.tenant, period=request.period, unit=request.unit, amount=given["amount"])


async def put_budget(connection: AsyncConnection, tenant: str, period: Period, unit: Unit, amount: Decimal | None) -> None:
    """Set a budget, or remove it if `amount` is None."""
    if amount is None:
        of_it = (budgets.c.tenant == tenant, budgets.c.period == period, budgets.c.unit == unit)
        await connection.execute(delete(budgets).where(*of_it))
        return
    row = {"tenant": tenant, "period": period, "unit": unit, "amount": amount, "before": 0}
    new = insert(budgets).values(**row, begins_at=literal_column("'-infinity'::timestamptz"))
    changed = {"amount": new.excluded.amount, "reported": ""}
    await connection.execute(new.on_conflict_do_update(index_elements=[budgets.c.tenant, budgets.c.period, budgets.c.unit], set_=changed))


async def begin_periods(connection: AsyncConnection) -> None:
    """Begin the current period of budgets that are new or whose period is over."""
    await connection.execute(_BEGIN_PERIODS)


async def standings(connection: AsyncConnection, tenants: Collection[str] | None = None) -> Standings:
    """Usage of budgets. `tenants`: None for all."""
    statement, given = (_STANDINGS, {}) if tenants is None else (_STANDINGS_OF_SOME, {"tenants": sorted(tenants)})
    rows = (await connection.execute(statement, given)).all()
    found = [Budget(row.tenant, row.period, row.unit, row.amount, row.spent, row.reserved, row.moving, row.reported) for row in rows]
    by_pool: Mapping[str, list[str]] = (rows[0].prices if rows else None) or {}
    return Standings(found, {pool: UnitPrices(*map(Decimal, each)) for pool, each in by_pool.items()})


async def _used_up(connection: AsyncConnection, tenant: str) -> list[SpentBudget]:
    """The tenant's used-up budgets. One small query if it has none. Excludes budgets whose new period begins within seconds."""
    if not (await connection.execute(select(select(budgets.c.tenant).where(budgets.c.tenant == tenant).exists()))).scalar_one():
        return []
    rows = (await connection.execute(_USED_UP, {"tenants": [tenant]})).all()
    return [SpentBudget.model_validate(row._asdict()) for row in rows]


async def report(connection: AsyncConnection, budget: Budget, reported: str) -> bool:
    """Record the level reported for the budget in this period; False if another replica already did."""
    of_it = (budgets.c.tenant == budget.tenant, budgets.c.period == budget.period, budgets.c.unit == budget.unit)
    statement = update(budgets).where(*of_it, budgets.c.reported != reported).values(reported=reported)
    return (await connection.execute(statement.returning(budgets.c.tenant))).first() is not None


@dataclass(frozen=True)
class BudgetedTask:
    """A task that could open a group, or that its tenant's budget has paused."""

    task: str
    tenant: str
    pool: str
    bound: GroupBound
    """Bound of its next group."""
    evaluates: bool
    is_paused: bool


_WAITING = text(f"""
SELECT t.id, t.tenant, t.pool, t.over_budget, coalesce(e.size, t.group_size)::bigint * t.trajectory_tokens AS tokens,
       coalesce(e.size, t.group_size) * {_DEADLINE_MS} AS env_ms,
       e.size IS NOT NULL AS evaluates
FROM tasks t
LEFT JOIN LATERAL (
    SELECT size FROM groups WHERE task = t.id AND protocol IS NOT NULL AND state = 'planned' ORDER BY number LIMIT 1) e ON true
WHERE t.over_budget OR (t.tenant = ANY(:tenants) AND t.state = 'running'
      AND (e.size IS NOT NULL OR least(t.version + t.max_staleness + 1, t.steps) * t.groups_per_step - t.admitted + t.voided > 0))
ORDER BY t.id
""")


async def waiting_tasks(connection: AsyncConnection, tenants: Collection[str]) -> list[BudgetedTask]:
    """Tasks of these tenants that could open a group, and all tasks paused by a budget, by id."""
    rows = (await connection.execute(_WAITING, {"tenants": sorted(tenants)})).all()
    return [BudgetedTask(row.id, row.tenant, row.pool, GroupBound(row.tokens, row.env_ms), row.evaluates, row.over_budget) for row in rows]


async def leave_paused(connection: AsyncConnection, task: str) -> bool:
    """Turn a budget pause into an owner pause; False if the task is not paused by a budget."""
    statement = update(tasks).where(tasks.c.id == task, tasks.c.over_budget).values(over_budget=False).returning(tasks.c.id)
    return (await connection.execute(statement)).first() is not None


async def there_are_any(connection: AsyncConnection) -> bool:
    """Whether any tenant has a budget, or any task is paused by one."""
    paused = select(tasks.c.id).where(tasks.c.over_budget).exists()
    return bool((await connection.execute(select(select(budgets.c.tenant).exists() | paused))).scalar_one())


async def answer_budgets(question: Question, _: AskBudgets) -> BudgetsAnswer:
    async with question.reading() as connection:
        found = (await standings(connection, [question.tenant] if question.tenant else None)).found
    names = BudgetOf.model_fields
    return BudgetsAnswer(budgets=[BudgetOf.model_validate({name: getattr(one, name) for name in names}) for one in found])


async def answer_terms(question: Question, _: AskTerms) -> TermsAnswer:
    """Limits of a tenant's HTTP requests, and its used-up budgets. Raises: Reject if no tenant is named; Unavailable."""
    if question.tenant is None:
        raise Reject("terms are of one tenant: name it")
    async with question.reading() as connection:
        weight = await weight_of(connection, question.tenant)
        if weight is None:
            return TermsAnswer(is_known=False)
        spent = await _used_up(connection, question.tenant)
        if (tokens := await limits.tokens_used_up(connection, question.tenant)) is not None:
            spent.append(tokens)
        return TermsAnswer(is_known=True, weight=weight, limits={**await limits.http_limits(connection, question.tenant)}, spent=spent)
