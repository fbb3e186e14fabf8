"""Accounts and keys: operators' changes, reads, and the bucket from which gateways read HTTP keys."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from sqlalchemy import ColumnElement, exists, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.errors import Reject
from common.limits import IN_ACCOUNT, LIMITS
from common.messages import HttpKey, KeyRecord, NewKey, SetAccess, TenantAccess
from common.messages.tenancy.access import MAX_KEYS
from scheduler_svc.base.tables import keys, tenants
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.limits import WITH_LIMITS, limit_of

SUSPENSIONS = ("suspend-tenant", "end-suspension")
OPERATORS_LOCK = 7_341_021
"""Advisory lock that replaces the lock of a tenant's row for the operators' keys."""
OVER_S = 3_600
"""Seconds after which every gateway has received a key's revocation."""


@dataclass(frozen=True)
class Effect:
    """A change by a job, as recorded in the audit."""

    verb: str
    target: str
    """Tenant name or public key."""
    detail: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True)
class RecordedHttpKey:
    """An HTTP key as published to gateways."""

    value: HttpKey
    is_valid: bool
    """False if the key is revoked, or its tenant is suspended or deleted. An expired key counts as valid: gateways check its end."""
    is_over: bool
    """Whether the key was revoked or expired at least OVER_S ago."""


async def set_access(tx: Transaction, request: SetAccess) -> list[Effect]:
    """Record the changes and publish HTTP keys to gateways; returns the effects. Raises: Reject, and then records nothing."""
    async with tx.connection.begin_nested():
        effects = await _record(tx.connection, request)
    if any(effect.verb in SUSPENSIONS for effect in effects):
        post_http_keys(tx, await http_keys(tx.connection, tenant=request.tenant))
    else:
        await _post_changed(tx, effects)
    return effects


async def revoke_all(tx: Transaction, tenant: str) -> list[Effect]:
    """Revoke all keys of a tenant that is being deleted. The operator's command updates NATS."""
    effects = await _revoke(tx.connection, keys.c.tenant == tenant)
    await _post_changed(tx, effects)
    return effects


def post_http_keys(tx: Transaction, found: Iterable[RecordedHttpKey]) -> None:
    """Publish valid keys to the bucket, and remove the others from it."""
    for each in found:
        if each.is_valid:
            tx.post_value(streams.HTTP_KEYS_BUCKET, each.value.digest, each.value)
        else:
            tx.post_deletion(streams.HTTP_KEYS_BUCKET, each.value.digest)


async def _post_changed(tx: Transaction, effects: Sequence[Effect]) -> None:
    if effects:
        post_http_keys(tx, await http_keys(tx.connection, of=[effect.target for effect in effects]))


async def _record(connection: AsyncConnection, request: SetAccess) -> list[Effect]:
    """Record the request's changes. Raises: Reject."""
    tenant, effects = request.tenant, list[Effect]()
    if tenant is None:
        await connection.execute(select(func.pg_advisory_xact_lock(OPERATORS_LOCK)))
    else:
        if request.account is not None:
            await connection.execute(insert(tenants).values(id=tenant).on_conflict_do_nothing())
        present = select(tenants.c.account, tenants.c.suspended_at, tenants.c.deleted_by).where(tenants.c.id == tenant).with_for_update()
        account = (await connection.execute(present)).first()
        if account is None:
            raise Reject(f"tenant: no tenant '{tenant}'; `marlaas tenants create {tenant}` makes one")
        if account.deleted_by is not None:
            raise Reject(f"tenant: '{tenant}' is deleted")
        if request.account is None and account[0] is None and (request.add or request.suspended is not None):
            raise Reject(f"tenant: '{tenant}' has no account for keys yet; `marlaas tenants create {tenant}` makes one")
        if request.account not in (None, account[0]):
            await connection.execute(update(tenants).where(tenants.c.id == tenant).values(account=request.account))
            effects.append(Effect("create-tenant", tenant, {"account": request.account}))
            effects += await _revoke(connection, keys.c.tenant == tenant)
        if request.suspended is not None:
            since = func.coalesce(tenants.c.suspended_at, func.now()) if request.suspended else None
            await connection.execute(update(tenants).where(tenants.c.id == tenant).values(suspended_at=since))
            if request.suspended != (account.suspended_at is not None):
                effects.append(Effect("suspend-tenant" if request.suspended else "end-suspension", tenant))
    if request.add is not None:
        effects += await _add(connection, tenant, request.add, beside=request.beside)
    if request.revoke:
        effects += await _revoke(connection, _of(tenant) & keys.c.key.in_(request.revoke))
    return effects


async def note_use(connection: AsyncConnection, used: Sequence[str]) -> None:
    """Update the time of last use of keys that have sent jobs, at most once a minute per key."""
    if used:
        is_old = or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < func.now() - text("interval '1 minute'"))
        found = select(keys.c.key).where(keys.c.key.in_(used), is_old).order_by(keys.c.key).with_for_update(skip_locked=True)
        await connection.execute(update(keys).where(keys.c.key.in_(found.scalar_subquery())).values(last_used_at=func.now()))


async def is_operators(connection: AsyncConnection, tenant: str, key: str) -> bool:
    """Whether a job counts as an operator's: its tenant has no account, or its sender's `key` is an operators' key."""
    accounts = select(tenants.c.id).where(tenants.c.id == tenant, tenants.c.account.is_not(None))
    admins = select(keys.c.key).where(keys.c.key == key, keys.c.tenant.is_(None))
    return (await connection.execute(select(~exists(accounts) | exists(admins)))).scalar_one()


async def tenants_with_accounts(connection: AsyncConnection) -> dict[str, bool]:
    """Tenants with accounts → whether their deletion is complete."""
    rows = (await connection.execute(select(tenants.c.id, tenants.c.deleted_at).where(tenants.c.account.is_not(None)))).all()
    return {row.id: row.deleted_at is not None for row in rows}


async def accesses(connection: AsyncConnection, tenant: str | None, *, after: str | None, most: int) -> list[TenantAccess]:
    """Access of one tenant, or of up to `most` tenants after the name `after`; without `after`, the operators' access comes first."""
    columns = [
        tenants.c.id.label("tenant"),
        tenants.c.account,
        tenants.c.suspended_at.is_not(None).label("suspended"),
        tenants.c.deleted_by.is_not(None).label("deleted"),
        *(limit_of(name).label(name) for name in IN_ACCOUNT),
    ]
    chosen = select(*columns).select_from(WITH_LIMITS).where(tenants.c.id > after if after else True).order_by(tenants.c.id).limit(most)
    if tenant is not None:
        chosen = select(*columns).select_from(WITH_LIMITS).where(tenants.c.id == tenant)
    found = [TenantAccess.model_validate({**row, "keys": []}) for row in (await connection.execute(chosen)).mappings()]
    if tenant is None and after is None:
        connections, size = (LIMITS[name].default or 0 for name in IN_ACCOUNT)
        operators = TenantAccess(tenant=None, account=None, suspended=False, keys=[], max_connections=connections, max_message_bytes=size)
        found.insert(0, operators)
    return [one.model_copy(update={"keys": await _keys(connection, one.tenant)}) for one in found]


_HTTP = {
    **{name: keys.c[name] for name in ("tenant", "role", "name", "key")},
    "digest": keys.c.http_digest, "ends": keys.c.ends_at, "token": keys.c.http_token,
}  # fmt: skip


async def http_keys(connection: AsyncConnection, *, of: Collection[str] | None = None, tenant: str | None = None) -> list[RecordedHttpKey]:
    """HTTP keys whose public keys are in `of`. Without `of`: the keys of `tenant`; without both: all."""
    is_valid = keys.c.revoked_at.is_(None) & tenants.c.suspended_at.is_(None) & tenants.c.deleted_by.is_(None)
    is_over = func.least(keys.c.revoked_at, keys.c.ends_at) <= func.now() - func.make_interval(0, 0, 0, 0, 0, 0, OVER_S)
    columns = [column.label(name) for name, column in _HTTP.items()]
    statement = (
        select(*columns, is_valid.label("is_valid"), func.coalesce(is_over, False).label("is_over"))
        .select_from(keys.outerjoin(tenants, tenants.c.id == keys.c.tenant))
        .where(keys.c.http_digest.is_not(None))
        .order_by(keys.c.created_at, keys.c.key)
    )
    if of is not None:
        statement = statement.where(keys.c.key.in_(of))
    elif tenant is not None:
        statement = statement.where(keys.c.tenant == tenant)
    rows = (await connection.execute(statement)).mappings()
    return [RecordedHttpKey(HttpKey.model_validate({name: row[name] for name in _HTTP}), row["is_valid"], row["is_over"]) for row in rows]


async def _add(connection: AsyncConnection, tenant: str | None, new: NewKey, *, beside: bool) -> list[Effect]:
    if (new.role == "admin") != (tenant is None):
        raise Reject("role: the role admin acts for all tenants, so it is of none, and no other role is")
    present = await _keys(connection, tenant)
    if any(one.key == new.key for one in present):
        return []
    if len(present) >= MAX_KEYS:
        raise Reject(f"key: there are {len(present)} keys, revoked ones included, and there may be {MAX_KEYS}")
    replaced = any(one.name == new.name and one.revoked is None for one in present)
    if replaced and not beside:
        raise Reject(f"key: there is a key '{new.name}' already; rotate or revoke it, or choose another name")
    row = {"key": new.key, "tenant": tenant, "name": new.name, "role": new.role, "ends_at": new.ends}
    if new.http is not None:
        row |= {"http_digest": new.http.digest, "http_token": new.http.token}
    if (await connection.execute(insert(keys).values(row).on_conflict_do_nothing().returning(keys.c.key))).first() is None:
        raise Reject(f"key: {new.key} is another tenant's")
    ends: dict[str, JsonValue] = {"ends": new.ends.isoformat()} if new.ends else {}
    return [Effect("rotate-key" if replaced else "create-key", new.key, {"role": new.role, **ends})]


async def _keys(connection: AsyncConnection, tenant: str | None) -> list[KeyRecord]:
    columns = (
        keys.c.key,
        keys.c.name,
        keys.c.role,
        keys.c.ends_at.label("ends"),
        keys.c.created_at.label("created"),
        keys.c.revoked_at.label("revoked"),
        keys.c.last_used_at.label("last_used"),
        keys.c.http_digest.is_not(None).label("is_http"),
    )
    rows = await connection.execute(select(*columns).where(_of(tenant)).order_by(keys.c.created_at, keys.c.key))
    return [KeyRecord.model_validate(dict(row)) for row in rows.mappings()]


async def _revoke(connection: AsyncConnection, which: ColumnElement[bool]) -> list[Effect]:
    statement = update(keys).where(which, keys.c.revoked_at.is_(None)).values(revoked_at=func.now()).returning(keys.c.key)
    return [Effect("revoke-key", key) for key in sorted((await connection.execute(statement)).scalars())]


def _of(tenant: str | None) -> ColumnElement[bool]:
    return keys.c.tenant.is_(None) if tenant is None else keys.c.tenant == tenant
