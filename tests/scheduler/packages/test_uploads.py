"""Uploads: parts in any order, contradictions, limits, checks, answers, and deletions."""

import asyncio
from dataclasses import replace

import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.errors import Retry
from common.messages import MAX_PACKAGE_BYTES, OWN_FAMILY, PART_BYTES, DeadLetter, DeleteTenant, LimitValue, SetTenant, is_own, wheel_name
from common.resilience import crashpoints
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
from scheduler_svc.uploads import package_jobs as handlers
from scheduler_svc.uploads.package_jobs import clean_packages
from scheduler_svc.uploads.package_queries import Key
from scheduler_svc.uploads.packages import finish_deletion
from tests.support.scheduler.stages import running_world, spec
from tests.support.scheduler.uploads import WHEEL, PackageStages, answer, delete, digest_of, part, parts, send, serving_own, upload
from tests.support.waiting import eventually

DIGEST = digest_of(WHEEL)
OWN = {"environment": {"name": "own:game"}}


async def is_stored(bus: Bus, tenant: str, digest: str = DIGEST) -> bool:
    return wheel_name(tenant, digest) in {blob.name for blob in await Blobs(bus).listed()}


async def test_parts_in_any_order_and_twice_make_a_package_that_a_task_keeps(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        sent = parts(WHEEL, "one")
        await send(world, sent[2], sent[0], sent[3], replace(sent[0], message_id="repeated"), sent[1])
        made = await answer(world, "package", "one")
        assert made["state"] == "usable"
        assert (made["digest"], made["name"], made["version"], made["environments"]) == (DIGEST, "games", "1.0", ["own:game"])
        assert [(one.tenant, one.package) for one in stages.packages] == [("acme", DIGEST)]
        assert await Blobs(bus).fetch(stages.packages[0].wheel) == WHEEL
        assert await world.rows("SELECT count(*) FROM package_parts") == [(0,)]
        await world.run("a", spec(**OWN))
        newer = WHEEL + b"newer"
        await upload(world, newer, "two")
        await world.run("b", spec(**OWN))
        await world.run("c", spec(environment={"name": f"own:game@{DIGEST[:12]}"}))
        used = {group.task: group.package.sha256 for group in stages.opened if group.package}
        assert used == {"a": DIGEST, "b": digest_of(newer), "c": DIGEST}
        assert {check.task: check.package.sha256 for check in stages.checks if check.package} == used
        assert (await upload(world, WHEEL, "once-more"))["state"] == "usable"
        assert len(stages.packages) == 2, "a package that is known is not checked again"


async def test_packages_of_others_and_unknown_ones_read_the_same(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        await upload(world, WHEEL, "one")
        refusals: list[str] = []
        for number, name in enumerate(("own:game", f"own:game@{DIGEST}", "own:nothing")):
            await world.submit(f"g{number}", spec(tenant="globex", environment={"name": name}))
            found = await world.event(f"g{number}", "rejected", "globex")
            refusals.append(found["reasons"][0].replace(name, "NAME"))
        assert set(refusals) == {
            "environment.name: tenant 'globex' has no usable package with 'NAME'; it has none: upload one with `marlaas envs upload`"
        }
        foreign, absent = [await delete(world, digest, digest[:5], "globex") for digest in (DIGEST[:12], "0" * 12)]
        assert foreign["reasons"][0].replace(DIGEST[:12], "0" * 12) == absent["reasons"][0]
        assert (await upload(world, WHEEL, "theirs", "globex"))["state"] == "usable", "the same bytes are a package of each"
        assert await is_stored(bus, "acme") and await is_stored(bus, "globex")


async def test_what_contradicts_or_is_too_much_is_refused_by_name(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        lying = parts(WHEEL, "lying", digest="0" * 64)
        await send(world, *lying)
        assert "SHA-256" in (await answer(world, "package", "lying"))["reasons"][0]
        await send(world, part(WHEEL, "first"))
        await world.rows_become("SELECT count(*) FROM package_parts", [(1,)])
        await send(world, part(WHEEL, "other-bytes", data=b"x" * PART_BYTES))
        assert "differs" in (await answer(world, "package", "other-bytes"))["reasons"][0]
        await send(world, part(WHEEL, "longer", size_bytes=len(WHEEL) + PART_BYTES))  # whose first part is a whole one too
        assert "bytes here" in (await answer(world, "package", "longer"))["reasons"][0]
        await send(world, *(_announced(number) for number in range(5)))
        assert "not complete" in (await answer(world, "package", "big-4"))["reasons"][0]
        stages.wrong = "its WHEEL names no tag"
        refused = await upload(world, b"no wheel", "refused")
        assert refused["reasons"] == ["package: its WHEEL names no tag"]


def _announced(number: int) -> Outgoing:
    """A first part of a package as large as may be."""
    return part(b"x" * PART_BYTES, f"big-{number}", digest=f"{number}" * 64, size_bytes=MAX_PACKAGE_BYTES)


async def test_number_and_bytes_are_limited(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        await upload(world, WHEEL, "one")
        for limit, value in (("max_packages", 1), ("max_stored_bytes", len(WHEEL) + 3)):
            job = SetTenant(tenant="acme", request=limit.replace("_", "-"), limits=[LimitValue(of=limit, value=value)])
            await send(world, Outgoing(streams.job("set-tenant", "acme"), job, limit))
            await eventually(lambda limit=limit, value=value: world.rows(f"SELECT 1 FROM limits WHERE {limit} = {value}"))
            refused = await upload(world, b"four", limit.replace("_", "-"))
            assert limit in refused["reasons"][0]
            await world.execute(f"UPDATE limits SET {limit} = NULL WHERE tenant = 'acme'")


async def test_a_used_package_stays_and_an_unused_one_goes_with_its_blob(bus: Bus, database_url: str) -> None:
    stages = PackageStages(trains=False)
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        await upload(world, WHEEL, "one")
        await world.run("a", spec(**OWN), until="accepted")
        assert "1 task" in (await delete(world, DIGEST[:12], "too-early"))["reasons"][0]
        await world.control("cancel", "a", until="cancelled")
        assert (await delete(world, DIGEST[:12], "now"))["bytes"] == len(WHEEL)
        assert not await is_stored(bus, "acme")
        assert await world.rows("SELECT count(*) FROM packages") == [(0,)]
        await world.submit("b", spec(**OWN))
        assert "it has none" in (await world.event("b", "rejected"))["reasons"][0]


async def test_the_check_waits_for_a_replica_and_the_task_is_refused_until_then(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world:
        await send(world, *parts(WHEEL, "one"))
        await world.rows_become("SELECT state FROM packages", [("checking",)])
        assert await world.rows("SELECT data->>'reason' LIKE '%family ''own''%' FROM events WHERE event = 'package'") == [(True,)]
        await world.submit("early", spec(**OWN))
        assert "no usable package" in (await world.event("early", "rejected"))["reasons"][0]
        async with serving_own(bus, stages):
            assert (await answer(world, "package", "one"))["state"] == "usable"


async def test_parts_that_were_sent_while_no_scheduler_ran_are_a_package(bus: Bus, database_url: str) -> None:
    for job in parts(WHEEL, "before"):
        await bus.publish(job)
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        assert (await answer(world, "package", "before"))["state"] == "usable"


async def test_two_uploads_of_one_wheel_at_once_are_both_answered(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        found = await asyncio.gather(upload(world, WHEEL, "one"), upload(world, WHEEL, "two"))
        assert {one["state"] for one in found} == {"usable"}
        assert len(stages.packages) == 1


async def test_what_is_interrupted_is_completed(bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload whose blob is stored and not recorded, and a deletion whose blob is gone and whose row is not."""
    ahead = {"wheel_stored", "wheel_deleted"}

    def interrupt(name: str) -> None:
        if name in ahead:
            ahead.remove(name)
            raise Retry("interrupted", delay_s=0.0)

    monkeypatch.setattr(crashpoints, "reached", interrupt)
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        assert (await upload(world, WHEEL, "one"))["state"] == "usable"
        assert await is_stored(bus, "acme")
        assert (await delete(world, DIGEST[:12], "two"))["bytes"] == len(WHEEL)
        assert await world.rows("SELECT count(*) FROM packages") == [(0,)]
    assert ahead == set()


@pytest.mark.parametrize("name", ["own", "own:" + "a" * 101])
async def test_a_task_that_names_no_environment_of_a_package_is_rejected_at_once(bus: Bus, database_url: str, name: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        reasons = (await world.run("a", spec(environment={"name": name}), until="rejected"))["reasons"]
        expected = f"environment.name: '{name[:100]}' names no environment of a package: expected own:<environment>[@<digest>]"
        assert reasons == [expected]
        assert stages.checks == []


@pytest.mark.parametrize(
    ("name", "own"), [("own", True), ("own:game", True), ("owner:game", False), ("own_game", False), ("own.game", False)]
)
def test_one_rule_says_which_names_are_of_packages(name: str, own: bool) -> None:
    assert is_own(name) is own


async def test_only_an_upload_that_meets_an_interrupted_deletion_ends_it(
    bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def end(tx: Transaction, key: Key, blobs: Blobs) -> None:
        ended.append(key[0])
        await finish_deletion(tx, key, blobs)

    monkeypatch.setattr(handlers, "finish_deletion", end)
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        assert (await upload(world, WHEEL, "one"))["state"] == "usable"
        assert ended == []
        await world.rows("UPDATE packages SET state = 'deleting' RETURNING digest")
        assert (await upload(world, WHEEL, "two"))["state"] == "usable"
        assert set(ended) == {"acme"}
        assert await is_stored(bus, "acme")


async def test_a_check_that_cannot_be_handled_refuses_the_package(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world:
        await send(world, *parts(WHEEL, "one"))
        await world.rows_become("SELECT state FROM packages", [("checking",)])
        subject = streams.check_package(OWN_FAMILY, "acme", DIGEST)
        letter = DeadLetter(stage="package", subject=subject, reason="no memory", attempts=5, headers={}, body=b"", sequence=1)
        await send(world, Outgoing(streams.failed("package", "none"), letter, "letter"))
        assert (await answer(world, "package", "one"))["reasons"] == ["package: no memory"]


async def test_what_nobody_completes_is_deleted(bus: Bus, database_url: str) -> None:
    stages = PackageStages(wrong="it is none")
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        await send(world, part(WHEEL, "begun"))
        await upload(world, b"refused", "refused")
        await world.rows_become("SELECT state FROM packages ORDER BY 1", [("refused",), ("uploading",)])
        await clean_packages(world.database, bus, lambda: None)
        assert await world.rows("SELECT count(*) FROM packages") == [(2,)]
        await world.execute("UPDATE packages SET changed_at = now() - interval '2 hours'")
        await clean_packages(world.database, bus, lambda: None)
        assert await world.rows("SELECT state FROM packages") == [("refused",)]
        await world.execute("UPDATE packages SET changed_at = now() - interval '2 days'")
        await clean_packages(world.database, bus, lambda: None)
        assert await world.rows("SELECT count(*) FROM packages") == [(0,)]
        assert not await is_stored(bus, "acme", digest_of(b"refused"))


async def test_a_tenants_deletion_takes_its_packages_and_no_others(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world, serving_own(bus, stages):
        for tenant in ("acme", "globex"):
            await upload(world, WHEEL, f"of-{tenant}", tenant)
        await send(world, part(WHEEL + b"more", "begun"))
        await send(world, Outgoing(streams.job("delete-tenant", "acme"), DeleteTenant(tenant="acme", request="end"), "end"))
        await eventually(lambda: world.rows("SELECT 1 FROM events WHERE event = 'tenant-deleted'"))
        assert await world.rows("SELECT tenant FROM packages") == [("globex",)]
        assert await world.rows("SELECT count(*) FROM package_parts") == [(0,)]
        assert not await is_stored(bus, "acme") and await is_stored(bus, "globex")
        late = await upload(world, WHEEL, "late")
        assert late["reasons"] == ["tenant: 'acme' is deleted"]


async def test_a_sweep_keeps_wheels_and_checks_that_wait(bus: Bus, database_url: str) -> None:
    stages = PackageStages()
    async with running_world(bus, database_url, stages) as world:
        async with serving_own(bus, stages):
            await upload(world, WHEEL, "one")
        await send(world, *parts(b"two", "two"))
        check = streams.check_package(OWN_FAMILY, "acme", digest_of(b"two"))
        await eventually(lambda: bus.streams.subjects(streams.PROMPTS, check))
        await GarbageCollector(world.database, bus, 3600.0).sweep()
        assert await is_stored(bus, "acme") and await bus.streams.subjects(streams.PROMPTS, check) == {check: 1}
