"""Breakages of what NATS knows of HTTP keys, aliases and processes."""

from datetime import UTC, datetime

from common import streams
from common.messages import HttpKey, ProcessLife
from common.messages.lives import life_key
from scheduler_svc.training.aliases import find_aliases
from tests.support.scheduler.finished import Copy

HTTP_KEY = HttpKey(digest="d" * 64, tenant="acme", role="owner", name="k", key="U" + "D" * 55, ends=None, token="a.b.c")


async def record_an_http_key(world: Copy, revoked_at: str = "NULL", ends_at: str = "NULL") -> None:
    """Record a key that gateways are not told of."""
    await world.execute(
        "INSERT INTO keys (key, tenant, name, role, revoked_at, ends_at, http_digest, http_token) VALUES"
        f" ('{HTTP_KEY.key}', 'acme', 'k', 'owner', {revoked_at}, {ends_at}, '{HTTP_KEY.digest}', 'a.b.c')"
    )


async def tell_of_an_http_key(world: Copy, **changes: object) -> None:
    await world.bus.kv.put(streams.HTTP_KEYS_BUCKET, HTTP_KEY.digest, HTTP_KEY.model_copy(update=changes))


async def tell_of_a_recorded_http_key(world: Copy) -> None:
    await record_an_http_key(world)
    await tell_of_an_http_key(world)


async def tell_of_another_token(world: Copy) -> None:
    await record_an_http_key(world)
    await tell_of_an_http_key(world, token="a.b.d")


async def tell_of_a_revoked_http_key(world: Copy) -> None:
    await record_an_http_key(world, revoked_at="now()")
    await tell_of_an_http_key(world)


async def lose_an_http_key_that_will_end(world: Copy) -> None:
    await record_an_http_key(world, ends_at="now() + interval '1 day'")


ENDED = datetime(2020, 1, 2, tzinfo=UTC)


async def forget_an_ended_http_key(world: Copy) -> None:
    await record_an_http_key(world, ends_at=f"'{ENDED.isoformat()}'")


async def keep_an_ended_http_key(world: Copy) -> None:
    await forget_an_ended_http_key(world)
    await tell_of_an_http_key(world, ends=ENDED)


async def forget_a_revoked_http_key(world: Copy) -> None:
    await record_an_http_key(world, revoked_at="now()")


async def record_an_alias(world: Copy) -> None:
    """Record an alias that rollout replicas are not told of."""
    await world.execute(
        "INSERT INTO aliases (tenant, name, task, version, pool, adapter, request)"
        " SELECT 'acme', 'prod', task, version + 1, 'tiny', adapter, 'r' FROM steps WHERE task = 'a' AND version = 1"
    )


async def tell_of_an_alias(world: Copy, **changes: object) -> None:
    """Record an alias, and tell of it with these changes."""
    await record_an_alias(world)
    async with world.database.statements() as connection:
        [alias] = await find_aliases(connection)
    await world.bus.kv.put(streams.ALIASES_BUCKET, alias.key, alias.model_copy(update=changes))


async def tell_of_an_older_change(world: Copy) -> None:
    await tell_of_an_alias(world, changed_s=1.0)


async def tell_of_another_pool(world: Copy) -> None:
    await tell_of_an_alias(world, pool="other")


async def tell_of_a_deleted_alias(world: Copy) -> None:
    await tell_of_an_alias(world)
    await world.execute("DELETE FROM aliases")


async def live(world: Copy, deaths: int, ready: bool) -> None:
    now_s = world.bus.clock.now_s()
    life = ProcessLife(service="trainer", replica="t", began_s=now_s - 90, deaths=deaths, died_s=now_s - 90, cause="KeyRefused: no")
    ready_s = now_s - 80 if ready else None
    await world.bus.kv.put(streams.HISTORY_BUCKET, life_key("trainer", "t"), life.model_copy(update={"ready_s": ready_s}))


async def die_three_times_alike(world: Copy) -> None:
    await live(world, deaths=3, ready=False)


async def die_twice(world: Copy) -> None:
    await live(world, deaths=2, ready=False)


async def work_after_three_deaths(world: Copy) -> None:
    await live(world, deaths=3, ready=True)


async def begin_a_process(world: Copy) -> None:
    life = ProcessLife(service="trainer", replica="t", began_s=1.0, ready_s=2.0)
    await world.bus.kv.put(streams.HISTORY_BUCKET, life_key("trainer", "t"), life)
