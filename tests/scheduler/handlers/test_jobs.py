"""Jobs against real NATS and PostgreSQL: what is accepted, rejected, cancelled, paused and resumed."""

import asyncio

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.client_api.asking import Door
from common.messages import SubmitTask
from common.pools import Pool
from common.spec import parse_spec
from marlaas.client import Client
from tests.support.scheduler.stages import POOLS, Stages, running_world, spec, submission
from tests.support.waiting import eventually


async def test_repeated_submission_is_harmless_and_another_spec_is_rejected(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a", until="accepted")
        repeated = submission("a", spec())
        await bus.publish(Outgoing(repeated.subject, repeated.message, "repeated"))
        other = submission("a", spec(seed=7))
        await bus.publish(Outgoing(other.subject, other.message, "other"))
        assert "taken by another task" in str((await world.event("a", "rejected"))["reasons"])
        await world.event("a", "finished")
        assert await world.rows("SELECT count(*) FROM tasks") == [(1,)]
        assert await world.rows("SELECT count(*) FROM events WHERE event = 'accepted'") == [(1,)]


async def test_wrong_specs_are_rejected_with_every_reason(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await eventually(lambda: world.scheduler._replicas.families == {"toy"})
        cases = {
            "unknown-key": (spec(stepz=3), "stepz: no such field; did you mean 'steps'?"),
            "rank": (spec(lora={"rank": 64}), "lora.rank: 64 is above what pool 'tiny' allows: 16"),
            "pool": (spec(pool="huge"), "no pool 'huge' here; offered: tiny"),
            "group-of-one": (spec(algorithm={"group_size": 1}), "use 2 or more"),
            "too-long": (spec(sampling={"max_tokens": 400}), "but pool 'tiny' has a context of 512"),
            "environment": (spec(environment={"name": "nowhere"}), "no environment 'nowhere' here"),
        }
        for task, (raw, reason) in cases.items():
            assert reason in str((await world.run(task, raw, until="rejected"))["reasons"]), task
        nowhere = {"environment": {"name": "nowhere"}, "pool": "huge"}
        without = {name: value for name, value in spec(pool="huge").items() if name != "environment"}
        several = {
            "fields": (spec(steps=0, stepz=3, **nowhere), ["steps", "stepz", "pool", "environment.name"]),
            "values": (spec(start={"task": "none"}, **nowhere), ["pool", "environment.name", "start.task"]),
            "no-environment": (without, ["environment.name", "pool"]),
        }
        for task, (raw, fields) in several.items():
            reasons = (await world.run(task, raw, until="rejected"))["reasons"]
            assert [reason.partition(":")[0] for reason in reasons] == fields, reasons
        assert await world.rows("SELECT count(*) FROM tasks") == [(0,)]


async def test_argument_that_the_pools_template_does_not_have_is_rejected_by_name(bus: Bus, database_url: str) -> None:
    asking = spec(sampling={"template": {"enable_thinkin": False}})
    async with running_world(bus, database_url, Stages()) as world:
        world.rollout = world.rollout.model_copy(update={"template_variables": ["enable_thinking", "date_string"]})
        await world.make_room(64)
        await eventually(lambda: any(report.template_variables for report in world.scheduler._replicas.reports))
        await world.submit("misspelt", asking)
        reason = "sampling.template.enable_thinkin: the model's chat template has no such argument; did you mean 'enable_thinking'?"
        assert (await world.event("misspelt", "rejected"))["reasons"] == [reason]
        await world.submit("right", spec(sampling={"template": {"enable_thinking": False}, "stop": ["\n"]}, evaluation={"every": 1}))
        await world.event("right", "finished")
        assert {group.sampling.template["enable_thinking"] for group in world.stages.opened} == {False}
        assert {group.sampling.stop for group in world.stages.opened} == {("\n",)}
        assert any(group.greedy for group in world.stages.opened), "evaluations sample with the same"


async def test_environment_that_refuses_its_options_rejects_the_task(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(objection="toy has no option 'size'")) as world:
        assert (await world.run("a", until="rejected"))["reasons"] == ["environment: toy has no option 'size'"]
        assert await world.rows("SELECT state, reason FROM tasks") == [("rejected", "toy has no option 'size'")]


async def test_impossible_start_is_rejected_with_the_field(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: group.task == "young")) as world:
        await world.run("a", spec(lora={"targets": ["q_proj", "v_proj"]}, keep={"adapters": "checkpoints", "checkpoints": 1}, steps=5))
        await world.run("young", until="accepted")
        same = {"targets": ["v_proj", "q_proj"]}
        cases = {
            "unknown": (spec(start={"task": "missing"}), "start.task: tenant 'acme' has no task 'missing'"),
            "others": (spec(tenant="globex", start={"task": "a"}), "start.task: tenant 'globex' has no task 'a'"),
            "untrained": (spec(start={"task": "young"}), "start.task: 'young' has trained no version yet"),
            "future": (spec(start={"task": "a", "version": 9}, lora=same), "start.version: 'a' has versions 1 to 5, not 9"),
            "deleted": (spec(start={"task": "a", "version": 1}, lora=same), "version 1 of 'a' is no longer stored"),
            "rank": (spec(start={"task": "a"}, lora={"rank": 4, **same}), "'a' has lora.rank 8, this task 4; they must be equal"),
            "targets": (spec(start={"task": "a"}), "'a' has lora.targets [q_proj, v_proj], this task [q_proj, k_proj"),
            "alone": (spec(start={"version": 2}), "version is given, but not the task that it is of"),
        }
        for task, (raw, reason) in cases.items():
            await world.submit(task, raw)
            assert reason in str((await world.event(task, "rejected", tenant=raw["tenant"]))["reasons"]), task
        await world.run("fine", spec(start={"task": "a"}, lora=same), until="accepted")


async def test_control_of_another_tenants_task_is_rejected(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.run("a", until="accepted")
        await world.control("cancel", "a", tenant="mallory")
        assert "no task 'a' of tenant 'mallory'" in str((await world.event("a", "rejected", tenant="mallory"))["reasons"])
        assert await world.rows("SELECT state FROM tasks") == [("running",)]


async def test_cancel_frees_everything_and_touches_no_other_task(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.task == "stuck")
    async with running_world(bus, database_url, stages) as world:
        await world.submit("stuck")
        await eventually(lambda: any(group.task == "stuck" for group in stages.opened))
        await world.control("cancel", "stuck", until="cancelled")
        await world.run("next", spec(tenant="other"))
        assert await world.rows("SELECT DISTINCT state, void_reason FROM groups WHERE task = 'stuck'") == [("void", "cancelled")]
        assert await world.rows("SELECT admitted - voided FROM tasks WHERE id = 'stuck'") == [(0,)]


async def test_pause_stops_admission_until_resume(bus: Bus, database_url: str) -> None:
    gate = asyncio.Event()
    stages = Stages(withheld=lambda group, member: not gate.is_set())
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", spec(steps=3), opened=4)
        await world.control("pause", "a", until="paused")
        gate.set()
        await world.score(stages.opened)
        await world.rows_become("SELECT count(*) FROM groups WHERE state = 'ready'", [(4,)])
        assert stages.batches == []
        await world.control("resume", "a")
        await world.event("a", "finished")


async def test_pausing_one_task_leaves_work_in_flight_of_others_unchanged(bus: Bus, database_url: str) -> None:
    answers: set[str] = set()
    stages = Stages(withheld=lambda group, member: group.task not in answers)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await world.submit("b", spec(tenant="other"))
        await eventually(lambda: [sum(group.task == task for group in stages.opened) for task in "ab"] == [4, 4])
        in_flight = [group for group in stages.opened if group.task == "b"]
        await world.control("pause", "a", until="paused")
        answers.add("b")
        await world.score(in_flight)
        await world.event("b", "finished", tenant="other")
        assert await world.rows("SELECT admitted, voided FROM tasks WHERE id = 'b'") == [(6, 0)]
        assert await world.rows("SELECT DISTINCT state, count(*) FROM groups WHERE task = 'a' GROUP BY state") == [("open", 4)]


async def test_pool_defaults_complete_a_task_and_a_repeated_submission_is_known_after_they_changed(bus: Bus, database_url: str) -> None:
    pools = {"tiny": POOLS["tiny"].model_copy(update={"defaults": {"lora": {"rank": 4}, "priority": 2}})}
    async with running_world(bus, database_url, Stages(), pools=pools) as world:
        await world.submit("a", spec(lora={"alpha": 4}))
        accepted = (await world.event("a", "accepted"))["spec"]
        assert (accepted["lora"]["rank"], accepted["lora"]["alpha"], accepted["priority"]) == (4, 4.0, 2)
        assert "environment" not in accepted
        pools["tiny"] = POOLS["tiny"].model_copy(update={"defaults": {"lora": {"rank": 2}}})
        repeated, other = submission("a", spec(lora={"alpha": 4})), submission("a", spec(lora={"alpha": 4, "rank": 2}))
        await bus.publish(Outgoing(repeated.subject, repeated.message, "repeated"))
        await bus.publish(Outgoing(other.subject, other.message, "other"))
        assert "taken by another task" in str((await world.event("a", "rejected"))["reasons"])
        await world.event("a", "finished")
        assert len(await world.events("a", "rejected")) == 1
        assert await world.rows("SELECT spec -> 'lora' ->> 'rank', priority FROM tasks") == [("4", 2)]


async def test_preview_answers_with_reasons_and_the_origin_of_each_value_and_stores_nothing(bus: Bus, database_url: str) -> None:
    pools = {**POOLS, "big": Pool(model="m", max_rank=64, profile="8b")}
    async with running_world(bus, database_url, Stages(), pools=pools) as world:
        await eventually(lambda: world.scheduler._replicas.families == {"toy"})
        door = Door(bus, "")
        client = Client(door)
        preview = await client.preview(spec(pool="big", lora={"alpha": 8}))
        assert preview.reasons == []
        assert preview.spec["lora"] == {**parse_spec(spec()).lora.model_dump(mode="json"), "rank": 32, "alpha": 8.0}
        origins = {path: preview.sources[path] for path in ("lora.alpha", "lora.rank", "lora.targets")}
        assert origins == {"lora.alpha": "task", "lora.rank": "profile '8b'", "lora.targets": "built-in"}
        refused = await client.preview(spec(pool="big", lora={"rank": 128}, environment={"name": "nowhere"}, start={"task": "none"}))
        assert [reason.partition(":")[0] for reason in refused.reasons] == ["lora.rank", "environment.name", "start.task"]
        assert (await client.preview(spec(algorithm={"group_size": 1}))).reasons == [
            "algorithm: group_size is 1, but advantage 'grpo' compares attempts at one prompt: use 2 or more"
        ]
        assert await world.rows("SELECT count(*) FROM tasks") == [(0,)]


async def test_task_that_makes_its_tenant_says_so(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(trains=False)) as world:
        await world.run("first", until="accepted")
        await world.run("second", until="accepted")
        said = [(await world.event(task, "accepted")).get("new_tenant") for task in ("first", "second")]
        assert said == [True, None]


@pytest.mark.parametrize(
    ("account", "owner", "role", "by_operator"),
    [("NULL", "'acme'", "member", True), ("'A'", "'acme'", "member", False), ("'A'", "NULL", "admin", True)],
)
async def test_check_and_groups_say_whether_the_operator_has_submitted_the_task(
    bus: Bus, database_url: str, account: str, owner: str, role: str, by_operator: bool
) -> None:
    key = "U" + "A" * 55
    async with running_world(bus, database_url, Stages()) as world:
        await world.execute(f"INSERT INTO tenants (id, account) VALUES ('acme', {account})")
        await world.execute(f"INSERT INTO keys (key, tenant, name, role) VALUES ('{key}', {owner}, 'x', '{role}')")
        job = SubmitTask(task="a", tenant="acme", spec=spec())
        await bus.publish(Outgoing(f"{streams.job('submit', 'acme')}.{key}", job, "submit"))
        await world.event("a", "finished")
        said = [*world.stages.checks, *world.stages.opened]
        assert {one.by_operator for one in said} == {by_operator}
