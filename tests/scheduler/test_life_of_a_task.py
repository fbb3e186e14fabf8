"""The scheduler against real NATS and PostgreSQL: a task from submission to its end, and what may go wrong."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import UNSUPPORTED, ControlTask, DeadLetter, TaskStatus, TrainBatch
from scheduler_svc.decisions.task_end import MIN_FAILURES_TO_FAIL
from scheduler_svc.maintenance.garbage_collector import GarbageCollector, needed_blobs
from scheduler_svc.store.queries import tasks
from tests.conftest import eventually
from tests.scheduler.stages import Stages, running_world, scored, spec, submission, updated


def control(verb: str, task: str, tenant: str = "acme") -> Outgoing:
    assert verb in ("cancel", "pause", "resume")
    return Outgoing(streams.control(verb, tenant), ControlTask(task=task, tenant=tenant), f"{verb}:{task}:{tenant}")  # type: ignore[arg-type]


async def test_task_runs_to_its_end_with_every_step_taken_once(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await world.event("a", "accepted")
        assert (await world.event("a", "finished"))["version"] == 3
        assert await world.rows("SELECT version, state FROM steps ORDER BY version") == [(0, "trained"), (1, "trained"), (2, "trained")]
        assert await world.rows("SELECT count(*) FROM groups WHERE state <> 'trained'") == [(0,)]
        assert await world.rows("SELECT count(*) FROM trajectories WHERE state <> 'trained'") == [(0,)]
        assert await world.rows("SELECT kind, sum(tokens) FROM ledger GROUP BY kind ORDER BY kind") == [
            ("prompt", 3 * 2 * 2 * 3),
            ("sampled", 3 * 2 * 2 * 2),
            ("trained", 3 * 7),
        ]
        assert await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus) is not None
        assert [batch.version for batch in world.stages.batches] == [0, 1, 2]


async def test_status_says_what_the_row_says(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await world.event("a", "finished")

        async def final() -> bool:
            status = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
            return status is not None and status.state == "finished" and status.version == 3 and status.reward == 0.5

        await eventually(final)
        [row] = await world.rows("SELECT state, version, last_reward, open_groups FROM task_status")
        assert tuple(row) == ("finished", 3, 0.5, 0)


async def test_nothing_sampled_is_staler_than_the_bound(bus: Bus, database_url: str) -> None:
    for bound in (0, 1, 3):
        async with running_world(bus, database_url, Stages()) as world:
            algorithm = {"group_size": 2, "groups_per_step": 2, "max_staleness": bound}
            await world.submit(f"bound-{bound}", spec(steps=6, algorithm=algorithm))
            await world.event(f"bound-{bound}", "finished")
            [row] = await world.rows(f"SELECT trained_max, trained_steps FROM task_staleness WHERE task = 'bound-{bound}'")
            assert row.trained_steps == 6
            assert row.trained_max <= bound
            assert await world.rows(f"SELECT count(*) FROM groups WHERE task = 'bound-{bound}' AND void_reason = 'stale'") == [(0,)]


async def test_repeated_submission_is_harmless_and_another_spec_is_rejected(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await world.event("a", "accepted")
        repeated = submission("a", spec())
        await bus.publish(Outgoing(repeated.subject, repeated.message, "again"))
        other = submission("a", spec(seed=7))
        await bus.publish(Outgoing(other.subject, other.message, "other"))
        assert "taken by another task" in str((await world.event("a", "rejected"))["reasons"])
        await world.event("a", "finished")
        assert await world.rows("SELECT count(*) FROM tasks") == [(1,)]
        assert await world.rows("SELECT count(*) FROM events WHERE event = 'accepted'") == [(1,)]


async def test_wrong_specs_are_answered_with_every_reason(bus: Bus, database_url: str) -> None:
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
            await world.submit(task, raw)
            assert reason in str((await world.event(task, "rejected"))["reasons"]), task
        assert await world.rows("SELECT count(*) FROM tasks") == [(0,)]


async def test_environment_that_refuses_its_options_rejects_the_task(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(objection="toy has no option 'size'")) as world:
        await world.submit("a")
        assert (await world.event("a", "rejected"))["reasons"] == ["environment: toy has no option 'size'"]
        assert await world.rows("SELECT state, reason FROM tasks") == [("rejected", "toy has no option 'size'")]


async def test_groups_of_a_task_differ_in_their_own_seed_and_share_that_of_their_prompts(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(seed=5))
        await world.event("a", "finished")
        assert {group.task_seed for group in world.stages.opened} == {5}
        assert len({group.seed for group in world.stages.opened}) == len(world.stages.opened)
        assert [group.row for group in world.stages.opened] == list(range(len(world.stages.opened)))


async def test_failed_member_voids_its_group_which_is_refilled(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "sandbox died" if group.group == 1 and member == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await world.event("a", "finished")
        assert await world.rows("SELECT number, void_reason, detail FROM groups WHERE state = 'void'") == [(1, "failed", "sandbox died")]
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'trained'") == [(6,)]
        assert all(batch.group != 1 for train in world.stages.batches for batch in train.groups)


async def test_step_says_which_share_of_its_groups_was_void(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "sandbox died" if group.group == 1 and member == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=2, algorithm={"group_size": 2, "groups_per_step": 2, "max_staleness": 0}))
        await world.event("a", "finished")
        told = await world.rows("SELECT data -> 'metrics' AS metrics FROM events WHERE event = 'step' ORDER BY id")
        assert [row.metrics.get("void_share") for row in told] == [1 / 3, 0.0]
        assert [row.metrics.get("void.failed") for row in told] == [1.0, None]
        assert [row.metrics for row in told] == [row.metrics for row in await world.rows("SELECT metrics FROM steps ORDER BY version")]


async def test_environment_that_always_fails_fails_its_task_alone(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "no such file" if group.task == "bad" else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("bad", spec(steps=50))
        await world.submit("good", spec(tenant="other"))
        assert "the last: no such file" in str((await world.event("bad", "failed"))["reason"])
        await world.event("good", "finished", tenant="other")
        [row] = await world.rows("SELECT count(*) FROM groups WHERE task = 'bad' AND void_reason = 'failed'")
        assert MIN_FAILURES_TO_FAIL <= row[0] <= MIN_FAILURES_TO_FAIL + 4


async def test_share_of_failed_groups_is_told_and_ends_the_task_past_its_limit(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "sandbox died" if group.group % 2 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("strict", spec(steps=50, limits={"max_failed_share": 0.4}))
        await world.submit("patient", spec(steps=8, tenant="other"))
        reason = (await world.event("strict", "failed"))["reason"]
        assert "groups failed (limits.max_failed_share is 0.4); the last: sandbox died" in reason
        assert 0.3 < (await world.event("patient", "step", tenant="other"))["failed_share"] < 0.7
        await world.event("patient", "finished", tenant="other")
        [(failed, share)] = await world.rows("SELECT failed_groups, failed_share FROM task_status WHERE task = 'patient'")
        [(void, all_groups)] = await world.rows(
            "SELECT count(*) FILTER (WHERE state = 'void'), count(*) FROM groups WHERE task = 'patient'"
        )
        assert (failed, share) == (void, void / all_groups)

        async def is_told() -> bool:
            status = await bus.kv.get(streams.TASKS_BUCKET, "patient", TaskStatus)
            return status is not None and status.failed_share == share

        await eventually(is_told)


async def test_task_whose_attempts_cannot_be_graded_here_fails_with_the_way_out(bus: Bus, database_url: str) -> None:
    """Though it allows any share of failures, and some of its groups are trained."""
    way_out = f"{UNSUPPORTED} (row 3): the sandbox 'monty' cannot run this program; run it with another"

    stages = Stages(failure=lambda group, member: way_out if group.group % 3 and member == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("unsupported", spec(steps=50))
        reason = await world.event("unsupported", "failed")
        assert "groups had attempts that cannot be graded here; the last: unsupported by the sandbox (row 3)" in str(reason)
        assert await world.rows("SELECT version > 0 FROM tasks WHERE id = 'unsupported'") == [(True,)]


async def test_overdue_group_is_voided_and_refunded(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group == 0 and member == 1)
    async with running_world(bus, database_url, stages) as world:
        world.disturb()  # so that groups which a slow machine keeps as long do not fail the task
        await world.submit("a", spec(limits={"episode_timeout_s": 2}))
        await world.event("a", "finished")
        void = await world.rows("SELECT number, void_reason FROM groups WHERE state = 'void'")
        assert (0, "deadline") in void  # and whichever else a slow machine kept two seconds
        assert {reason for _, reason in void} == {"deadline"}
        late = scored(stages.opened[0], 1, reward=1.0)
        await bus.publish(late)
        await asyncio.sleep(0)
        assert await world.rows("SELECT voided, admitted FROM tasks") == [(len(void), 6 + len(void))]


async def test_duplicates_change_nothing(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=4))
        await eventually(lambda: len(world.stages.batches) >= 2)
        first = world.stages.opened[0]
        again = scored(first, 0, reward=99.0)
        await bus.publish(Outgoing(again.subject, again.message, "duplicate-score", again.headers))
        weights = updated(world.stages.batches[0])
        await bus.publish(Outgoing(weights.subject, weights.message, "duplicate-weights"))
        await world.event("a", "finished")
        assert await world.rows("SELECT max(reward) FROM trajectories") == [(1.0,)]
        assert await world.rows("SELECT count(*) FROM steps WHERE state = 'trained'") == [(4,)]
        assert await world.rows("SELECT count(*) FROM events WHERE event = 'step'") == [(4,)]


async def test_cancel_frees_everything_and_touches_no_other_task(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.task == "stuck")
    async with running_world(bus, database_url, stages) as world:
        await world.submit("stuck")
        await eventually(lambda: any(group.task == "stuck" for group in stages.opened))
        await bus.publish(control("cancel", "stuck"))
        await world.event("stuck", "cancelled")
        await world.submit("next", spec(tenant="other"))
        await world.event("next", "finished", tenant="other")
        assert await world.rows("SELECT DISTINCT state, void_reason FROM groups WHERE task = 'stuck'") == [("void", "cancelled")]
        assert await world.rows("SELECT admitted - voided FROM tasks WHERE id = 'stuck'") == [(0,)]


async def test_pause_stops_admission_and_resume_goes_on(bus: Bus, database_url: str) -> None:
    gate = asyncio.Event()
    stages = Stages(withheld=lambda group, member: not gate.is_set())
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=3))
        await eventually(lambda: len(stages.opened) == 4)
        await bus.publish(control("pause", "a"))
        await world.event("a", "paused")
        gate.set()
        for group in list(stages.opened):
            for member in range(group.size):
                await bus.publish(scored(group, member, reward=float(member)))

        async def all_ready() -> bool:
            return await world.rows("SELECT count(*) FROM groups WHERE state = 'ready'") == [(4,)]

        await eventually(all_ready)
        assert stages.batches == []
        await bus.publish(control("resume", "a"))
        await world.event("a", "finished")


async def test_pausing_one_task_leaves_what_others_have_in_flight_as_it_is(bus: Bus, database_url: str) -> None:
    answers: set[str] = set()
    stages = Stages(withheld=lambda group, member: group.task not in answers)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await world.submit("b", spec(tenant="other"))
        await eventually(lambda: [sum(group.task == task for group in stages.opened) for task in "ab"] == [4, 4])
        flying = [group for group in stages.opened if group.task == "b"]
        await bus.publish(control("pause", "a"))
        await world.event("a", "paused")
        answers.add("b")
        for group in flying:
            for member in range(group.size):
                await bus.publish(scored(group, member, reward=float(member)))
        await world.event("b", "finished", tenant="other")
        assert await world.rows("SELECT admitted, voided FROM tasks WHERE id = 'b'") == [(6, 0)]
        assert await world.rows("SELECT DISTINCT state, count(*) FROM groups WHERE task = 'a' GROUP BY state") == [("open", 4)]


async def test_finished_task_leaves_no_message(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await world.event("a", "finished")

        async def nothing_left() -> bool:
            return not any([await bus.streams.subjects(stream) for stream in streams.IN_FLIGHT])

        await eventually(nothing_left)


async def test_no_step_waits_for_what_older_ones_left_to_be_deleted(bus: Bus, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def never(blobs: Blobs, name: str) -> None:
        asked.append(name)
        await asyncio.Event().wait()

    monkeypatch.setattr(Blobs, "delete", never)
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=6))
        await world.event("a", "finished")
        await eventually(lambda: len(asked) == 1)  # which it waits for still


async def test_score_that_another_scheduler_has_in_hand_is_kept_while_steps_pass_it_by(bus: Bus, database_url: str) -> None:
    taken = asyncio.Event()

    async def hold(deliveries: Sequence[Delivery]) -> None:
        taken.set()
        await asyncio.Event().wait()

    holder = asyncio.create_task(bus.consume_batches(streams.SCHEDULER_SCORED, hold, max_batch=1))
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await asyncio.wait_for(taken.wait(), timeout=250)
        await world.event("a", "step")  # of other groups: those of version 0 may be trained from version 1, too
        async with world.database.transaction() as tx:
            locked = await tasks.lock_tasks(tx.connection, ["a"])
        await GarbageCollector(world.database, bus, sweep_s=60).after_steps(locked)
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
        await world.event("a", "finished")


async def test_step_of_a_paused_task_keeps_what_is_on_its_way(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await eventually(lambda: len(stages.opened) == 4)
        await bus.publish(control("pause", "a"))
        await world.event("a", "paused")
        turn = Outgoing(streams.turn("nobody-serves-this", "a", "0-0"), scored(stages.opened[0], 0, reward=1.0).message, "turn")
        await bus.publish(turn)
        async with world.database.transaction() as tx:
            [task] = await tasks.lock_tasks(tx.connection, ["a"])
        await GarbageCollector(world.database, bus, sweep_s=60).after_steps([task])
        assert await bus.streams.subjects(streams.TURNS) == {turn.subject: 1}


async def test_nobody_controls_another_tenants_task(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await world.event("a", "accepted")
        await bus.publish(control("cancel", "a", tenant="mallory"))
        assert "no task 'a' of tenant 'mallory'" in str((await world.event("a", "rejected", tenant="mallory"))["reasons"])
        assert await world.rows("SELECT state FROM tasks") == [("running",)]


async def test_trainer_that_gives_up_fails_the_task_with_its_reason(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await eventually(lambda: len(stages.batches) == 1)
        body = stages.batches[0].encode()
        letter = DeadLetter(stage="train", subject="trajectories.batch.tiny.a", reason="loss is NaN", attempts=1, headers={}, body=body)
        await bus.publish(Outgoing(streams.failed("train", "a"), letter, "letter"))
        assert (await world.event("a", "failed"))["reason"] == "loss is NaN"
        assert await world.rows("SELECT state FROM steps") == [("void",)]


async def test_garbage_that_nobody_can_handle_ends_no_task(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group == 2)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a")
        await eventually(lambda: len(stages.batches) == 1)
        other = stages.batches[0].model_copy(update={"version": 5}).encode()
        for number, (stage, body) in enumerate([("train", b"garbage"), ("train", other), ("check", b"garbage")]):
            letter = DeadLetter(stage=stage, subject="x", reason="not a message", attempts=1, headers={}, body=body)
            await bus.publish(Outgoing(streams.failed(stage, "a"), letter, f"letter-{number}"))

        async def all_recorded() -> bool:
            return await world.rows("SELECT count(*) FROM dead_letters") == [(3,)]

        await eventually(all_recorded)
        assert await world.rows("SELECT state FROM tasks") == [("running",)]


async def test_in_flight_work_follows_what_replicas_can_take(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages, sequences=8) as world:
        algorithm = {"group_size": 2, "groups_per_step": 50}
        await world.submit("a", spec(algorithm=algorithm))
        await world.submit("b", spec(tenant="other", algorithm=algorithm))
        await eventually(lambda: len(stages.opened) >= 6)
        await asyncio.sleep(0.5)
        assert await world.rows("SELECT count(*) FROM trajectories WHERE state = 'open'") == [(12,)]


async def test_new_scheduler_goes_on_where_the_old_one_stopped(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=8))
        await eventually(lambda: len(world.stages.batches) >= 3)
    async with running_world(bus, database_url, Stages()) as world:
        await world.event("a", "finished")
        assert await world.rows("SELECT count(*) FROM steps WHERE state = 'trained'") == [(8,)]
        assert await world.rows("SELECT admitted - voided FROM tasks") == [(16,)]
        assert await world.rows("SELECT version FROM steps WHERE state = 'trained' ORDER BY version") == [
            (version,) for version in range(8)
        ]
        assert await world.rows("SELECT count(*), count(DISTINCT number), max(number) FROM groups WHERE state = 'trained'") == [
            (16, 16, 15)
        ]
        assert await world.rows("SELECT DISTINCT count(*) FROM groups GROUP BY step") == [(2,)]


async def test_pace_is_kept_across_a_pause_a_void_group_and_another_scheduler(bus: Bus, database_url: str) -> None:
    """At a version, with so many void, just what its bound allows was ever admitted: no burst, and no place that stays lost."""
    stages = Stages(
        failure=lambda group, member: "sandbox died" if (group.task, group.group) == ("a", 1) else None,
        withheld=lambda group, member: group.task == "a" and group.group >= 6,
    )
    kept = [(2, 1, 2 * 2 + 2 * 2 + 1)]  # version · groups of a step + (bound + 1) · groups of a step + void
    pace = "SELECT version, voided, admitted FROM tasks"

    async def is_kept() -> bool:
        return await world.rows(pace) == kept

    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=9))
        await eventually(is_kept, 60)
        await bus.publish(control("pause", "a"))
        await world.event("a", "paused")
        await bus.publish(control("resume", "a"))
        await world.event("a", "resumed")
        assert await world.rows(pace) == kept
    again = Stages(failure=stages.failure, withheld=stages.withheld)
    async with running_world(bus, database_url, again) as world:
        await world.submit("b", spec(tenant="other"))  # admitted after the new scheduler looked at both
        await world.event("b", "finished", tenant="other")
        assert await world.rows(f"{pace} WHERE id = 'a'") == kept


async def test_two_schedulers_share_the_work(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, running_world(bus, database_url, Stages()):
        for number in range(4):
            await world.submit(f"t{number}", spec(tenant=f"tenant{number % 2}", steps=5))
        for number in range(4):
            await world.event(f"t{number}", "finished", tenant=f"tenant{number % 2}")
        assert await world.rows("SELECT count(*), count(DISTINCT (task, version)) FROM steps WHERE state = 'trained'") == [(20, 20)]


def equal_below(number: int) -> Stages:
    """The first groups earn the same with every attempt, the others do not."""
    return Stages(reward=lambda group, member: 0.25 if group.group < number else float(member))


REFILLING = {"group_size": 2, "groups_per_step": 2, "max_staleness": 1, "max_refills": 100}


async def test_group_of_equal_rewards_is_void_and_refilled_where_the_task_asks(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, equal_below(3)) as world:
        await world.submit("a", spec(algorithm=REFILLING))
        await world.event("a", "finished")
        void = "SELECT number FROM groups WHERE state = 'void' AND void_reason = 'zero_variance' ORDER BY number"
        assert await world.rows(void) == [(0,), (1,), (2,)]
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'trained'") == [(6,)]
        assert await world.rows("SELECT min(reward), max(reward) FROM steps") == [(0.5, 0.5)]
        assert await world.rows("SELECT voided, admitted, failures_in_a_row FROM tasks") == [(3, 9, 0)]
        # what void groups consumed is on the bill all the same
        assert await world.rows("SELECT sum(tokens) FROM ledger WHERE kind = 'sampled'") == [(9 * 2 * 2,)]


async def test_group_of_equal_rewards_is_trained_by_default(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, equal_below(3)) as world:
        await world.submit("a")
        await world.event("a", "finished")
        assert await world.rows("SELECT voided, admitted FROM tasks") == [(0, 6)]


async def test_refills_end_at_the_limit_so_that_a_solved_task_ends_too(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, equal_below(10**6)) as world:
        await world.submit("a", spec(algorithm=REFILLING | {"max_refills": 1}))
        await world.event("a", "finished")
        by_version = await world.rows(
            "SELECT version, count(*) FROM groups WHERE void_reason = 'zero_variance' GROUP BY version ORDER BY 1"
        )
        assert by_version[0] == (0, 1)
        assert {count for _, count in by_version} == {1}
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'trained'") == [(6,)]


# --------------------------------------------------------------------------------------------------------- warm starts


async def test_task_that_starts_from_another_samples_and_trains_from_its_adapter(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a")
        await world.event("a", "finished")
        for task, start, source in (("latest", {"task": "a"}, 3), ("second", {"task": "a", "version": 2}, 2)):
            await world.submit(task, spec(start=start))
            await world.event(task, "finished")
            opened = [group for group in world.stages.opened if group.task == task and group.version == 0]
            assert {group.adapter.name for group in opened if group.adapter} == {f"{task}.v0"}
            assert {group.adapter.blob.name for group in opened if group.adapter} == {f"a/v{source}"}
            batches = [batch for batch in world.stages.batches if batch.task == task]
            assert {batch.start.blob.name for batch in batches if batch.start} == {f"a/v{source}"}
            later = [group for group in world.stages.opened if group.task == task and group.version > 0]
            assert all(group.adapter is not None and group.adapter.name == f"{task}.v{group.version}" for group in later)


async def test_start_that_cannot_be_is_rejected_with_the_field(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: group.task == "young")) as world:
        await world.submit("a", spec(lora={"targets": ["q_proj", "v_proj"]}, keep={"adapters": "checkpoints", "checkpoints": 1}, steps=5))
        await world.event("a", "finished")
        await world.submit("young")
        await world.event("young", "accepted")
        same = {"targets": ["v_proj", "q_proj"]}
        cases = {
            "unknown": (spec(start={"task": "nobody"}), "start.task: tenant 'acme' has no task 'nobody'"),
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
        await world.submit("fine", spec(start={"task": "a"}, lora=same))
        await world.event("fine", "accepted")


async def test_adapter_that_a_task_started_from_is_kept(bus: Bus, database_url: str) -> None:
    keep = {"adapters": "checkpoints", "checkpoints": 1}
    held = asyncio.Event()

    class Holding(Stages):
        async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
            if delivery.read(TrainBatch).version >= 2:  # a version is stored until two more are there
                await held.wait()
            async for out in super().train(delivery):
                yield out

    async with running_world(bus, database_url, Holding(withheld=lambda group, member: group.task == "b")) as world:
        await world.submit("a", spec(steps=8, keep=keep))
        await world.event("a", "step")
        await world.submit("b", spec(start={"task": "a", "version": 1}))
        await world.event("b", "accepted")
        held.set()
        await world.event("a", "finished")
        async with world.database.transaction() as tx:
            needed = await needed_blobs(tx.connection, "a")
        assert needed is not None
        assert needed.include("a/v1", 1)
        assert not needed.include("a/v2", 2)
