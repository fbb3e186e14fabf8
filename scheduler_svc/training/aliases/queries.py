"""Queries on aliases. Each change is one statement, which states what the alias must name before it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, AliasOf, BlobRef, KnownAlias, as_json, from_json
from scheduler_svc.base.sql import Statement, any_of
from scheduler_svc.base.tables import aliases


@dataclass(frozen=True)
class Alias:
    """A row of `aliases`."""

    tenant: str
    name: str
    pool: str
    adapter: AdapterRef
    request: str
    """Of the last change."""
    changed_s: float

    @property
    def model(self) -> str:
        """Exact name of its version."""
        return f"{self.adapter.task}@{self.adapter.version}"

    @property
    def known(self) -> KnownAlias:
        return KnownAlias(tenant=self.tenant, name=self.name, pool=self.pool, adapter=self.adapter, changed_s=self.changed_s)


_CHANGED_S = func.extract("epoch", aliases.c.changed_at)
_ROW = (aliases.c.tenant, aliases.c.name, aliases.c.pool, aliases.c.adapter, aliases.c.request, _CHANGED_S.label("changed_s"))


def _alias(row: Any) -> Alias:
    return Alias(row.tenant, row.name, row.pool, from_json(AdapterRef, row.adapter), row.request, float(row.changed_s))


async def find(connection: AsyncConnection, tenant: str, name: str) -> Alias | None:
    row = (await connection.execute(select(*_ROW).where(aliases.c.tenant == tenant, aliases.c.name == name))).first()
    return _alias(row) if row else None


async def put(
    connection: AsyncConnection, tenant: str, name: str, pool: str, adapter: AdapterRef, request: str, expected: str | None
) -> Alias | None:
    """Set an alias; None where it does not name what is expected: nothing for "", anything for None."""
    values = {"task": adapter.task, "version": adapter.version, "pool": pool, "adapter": as_json(adapter), "request": request}
    if expected:
        statement = update(aliases).where(*_naming(tenant, name, expected)).values(**values, changed_at=func.now()).returning(*_ROW)
    else:
        new = insert(aliases).values(tenant=tenant, name=name, **values)
        key = [aliases.c.tenant, aliases.c.name]
        or_else = (
            new.on_conflict_do_nothing(index_elements=key)
            if expected == ""
            else new.on_conflict_do_update(index_elements=key, set_={**values, "changed_at": func.now()})
        )
        statement = or_else.returning(*_ROW)
    row = (await connection.execute(statement)).first()
    return _alias(row) if row else None


async def remove(connection: AsyncConnection, tenant: str, name: str, expected: str | None) -> Alias | None:
    """Delete an alias; returns it. None where there is none, or it does not name what is expected."""
    row = (await connection.execute(delete(aliases).where(*_naming(tenant, name, expected)).returning(*_ROW))).first()
    return _alias(row) if row else None


def _naming(tenant: str, name: str, expected: str | None) -> list[ColumnElement[bool]]:
    condition = [aliases.c.tenant == tenant, aliases.c.name == name]
    if expected is not None:
        condition.append(aliases.c.task + "@" + aliases.c.version.cast(aliases.c.task.type) == expected)
    return condition


async def count(connection: AsyncConnection, tenant: str) -> int:
    return int((await connection.execute(select(func.count()).where(aliases.c.tenant == tenant))).scalar_one())


async def of_task(connection: AsyncConnection, task: str) -> list[str]:
    """Names of the aliases that name versions of the task."""
    return list((await connection.execute(select(aliases.c.name).where(aliases.c.task == task).order_by(aliases.c.name))).scalars())


_ADAPTERS = Statement(select(aliases.c.adapter["blob"].label("blob")).where(aliases.c.task == any_of("ids")))


async def adapters_of(connection: AsyncConnection, ids: Collection[str]) -> Mapping[str, BlobRef]:
    """The tasks' adapters that aliases name, by name of the blob."""
    found = [from_json(BlobRef, row.blob) for row in await _ADAPTERS.run(connection, {"ids": list(ids)})]
    return {ref.name: ref for ref in found}


async def all_aliases(connection: AsyncConnection) -> list[Alias]:
    """Of all tenants."""
    return [_alias(row) for row in await connection.execute(select(*_ROW).order_by(aliases.c.tenant, aliases.c.name))]


async def remove_all(connection: AsyncConnection, tenant: str) -> Collection[str]:
    """Delete all aliases of a tenant; returns their names."""
    return list((await connection.execute(delete(aliases).where(aliases.c.tenant == tenant).returning(aliases.c.name))).scalars())


async def page(
    connection: AsyncConnection, tenant: str | None, name: str | None, after: tuple[str, str], *, most: int
) -> Sequence[AliasOf]:
    """At most so many aliases above `after`, (tenant, name), in that order. None: of all tenants, of any name."""
    columns = (aliases.c.tenant, aliases.c.name, aliases.c.task, aliases.c.version, aliases.c.pool, _CHANGED_S.label("changed_s"))
    statement = select(*columns).where(tuple_(aliases.c.tenant, aliases.c.name) > after)
    for column, wanted in ((aliases.c.tenant, tenant), (aliases.c.name, name)):
        if wanted is not None:
            statement = statement.where(column == wanted)
    rows = (await connection.execute(statement.order_by(aliases.c.tenant, aliases.c.name).limit(most))).mappings()
    return [AliasOf.model_validate(dict(row) | {"changed_s": float(row["changed_s"])}) for row in rows]
