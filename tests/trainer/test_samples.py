"""Samples of steps: which attempts are kept, what is kept of them, and that no step waits or fails for them."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.errors import Unavailable
from common.messages import KeptAttempt, SamplesAnswer, StepSamples, TokenRecord
from common.messages.asks import MAX_ANSWER_BYTES
from common.messages.progress import KEPT_STEPS, MAX_SAMPLE_BYTES, SAMPLE_TOKEN_BYTES
from tests.support.trainer.batches import SPECS, batch_of, call, groups_of, store, update_in
from tests.support.trainer.groups import make_spec
from trainer_svc.algorithm.advantage import shaped_rewards, step_advantages
from trainer_svc.algorithm.batched_steps import ForwardRequest, run_requests
from trainer_svc.algorithm.sample_selection import KeptAttempts
from trainer_svc.algorithm.step import train_step, weighted_samples
from trainer_svc.algorithm.step_metrics import MAX_COMPONENTS
from trainer_svc.batch import Group
from trainer_svc.learner import initial_resident
from trainer_svc.model.packing import Sample, rows_of_group
from trainer_svc.model.policy import Adapted, Policy
from trainer_svc.service import Trainer


def _kept(policy: Policy, groups: list[Group], **keep: int) -> KeptAttempts:
    spec = make_spec("a", seed=1, keep=keep)
    return train_step(policy, initial_resident(policy, "a", spec), groups, spec, budget_tokens=1024).kept


@pytest.mark.parametrize("algorithm", [{}, {"minibatches": 2, "passes": 2}])
def test_attempts_have_the_numbers_that_the_step_was_made_from(policy: Policy, algorithm: dict[str, int]) -> None:
    spec, groups = make_spec("a", seed=1, algorithm=algorithm, keep={"samples": 16}), groups_of("a", 0)
    resident = initial_resident(policy, "a", spec)
    found = train_step(policy, resident, groups, spec, budget_tokens=1024).kept
    advantages = step_advantages([shaped_rewards(group, spec) for group in groups], spec.algorithm.advantage)
    adapted = Adapted(resident.layout, resident.optimizer.params, spec.sampling.temperature)
    assert len(found.attempts) == min(16, sum(len(group.trajectories) for group in groups))
    for kept in found.attempts:
        place = next(index for index, group in enumerate(groups) if group.group == kept.group)
        member = next(index for index, one in enumerate(groups[place].trajectories) if one.member == kept.member)
        trajectory, (sample,) = groups[place].trajectories[member], _alone(groups, place, member)
        rows = rows_of_group([sample], budget_tokens=1024, width=policy.width, shared=False)
        (alone,) = run_requests(policy, [ForwardRequest(rows, adapted)], budget_tokens=1024)
        sampled_T = trajectory.sampled_T.astype(bool)
        trainer_T = np.frombuffer(kept.trainer_logprobs, "<f4")
        np.testing.assert_allclose(trainer_T[sampled_T], alone.logprobs_N.numpy(), atol=1e-4)
        assert not trainer_T[~sampled_T].any()
        assert np.array_equal(kept.tokens.ids_T(), trajectory.ids_T)
        assert np.array_equal(kept.tokens.logprobs_T(), trajectory.sampler_logprobs_T)
        assert kept.advantage == pytest.approx(advantages[place][member])
        assert (kept.reward, kept.version) == (trajectory.reward, -groups[place].staleness)


def _alone(groups: list[Group], place: int, member: int) -> list[Sample]:
    spec = make_spec("a", seed=1)
    advantages = step_advantages([shaped_rewards(group, spec) for group in groups], spec.algorithm.advantage)
    return [weighted_samples(groups, advantages, spec)[0][place][member]]


def test_best_worst_one_of_the_best_ones_group_and_another_are_kept(policy: Policy) -> None:
    groups = groups_of("a", 0)
    attempts = _kept(policy, groups, samples=4).attempts
    rewards = [one.reward for group in groups for one in group.trajectories]
    assert len({(one.group, one.member) for one in attempts}) == 4
    assert (attempts[0].reward, attempts[1].reward) == (max(rewards), min(rewards))
    assert attempts[2].group == attempts[0].group
    assert [(one.group, one.member) for one in _kept(policy, groups, samples=4).attempts] == [(one.group, one.member) for one in attempts]
    assert len(_kept(policy, groups, samples=1).attempts) == 1
    assert _kept(policy, groups, samples=0) == KeptAttempts()


def test_attempts_without_room_are_left_out_whole(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of("a", 0)
    first = _kept(policy, groups, samples=4).attempts[0]
    monkeypatch.setattr("trainer_svc.algorithm.sample_selection.MAX_SAMPLE_BYTES", 13 * len(first.tokens))
    kept = _kept(policy, groups, samples=4)
    assert (len(kept.attempts), kept.left_out) == (1, 3)


async def test_repeated_step_replaces_equal_samples(bus: Bus, trainer: Trainer) -> None:
    batch = batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)
    stored: list[StepSamples] = []
    for _ in range(2):
        update_in(await call(trainer, batch))
        await trainer.samples.flush()
        found = await bus.streams.last(streams.SAMPLES, streams.samples("tiny", "a", 1))
        assert found is not None
        stored.append(found.read(StepSamples))
    again = StepSamples.decode(stored[0].encode())
    await bus.publish(Outgoing(streams.samples("tiny", "a", 1), again, "long after the window of duplicates"))
    assert stored[0] == stored[1]
    assert await bus.streams.subjects(streams.SAMPLES) == {"samples.tiny.a.1": 1}
    assert len(stored[0].attempts) == 4


async def test_no_step_waits_or_fails_for_samples(bus: Bus, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, held = bus.publish, asyncio.Event()

    async def refuse(out: Outgoing) -> int:
        if isinstance(out.message, StepSamples):
            await held.wait()
            raise Unavailable("no room")
        return await publish(out)

    monkeypatch.setattr(bus, "publish", refuse)
    assert update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))).version == 1
    held.set()
    await trainer.samples.flush()
    assert await bus.streams.subjects(streams.SAMPLES) == {}


async def test_nothing_is_stored_where_the_task_keeps_none(bus: Bus, trainer: Trainer) -> None:
    spec = SPECS["a"].model_copy(update={"keep": SPECS["a"].keep.model_copy(update={"samples": 0})})
    update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None, spec)))
    await trainer.samples.flush()
    assert await bus.streams.subjects(streams.SAMPLES) == {}


def test_largest_samples_fit_an_answer() -> None:
    tokens = MAX_SAMPLE_BYTES // SAMPLE_TOKEN_BYTES
    components = {f"{number:0100}": -1 / 3 for number in range(MAX_COMPONENTS)}
    attempts = [
        KeptAttempt(
            group=1,
            member=1,
            version=1,
            reward=-1 / 3,
            components=components,
            advantage=-1 / 3,
            finish="stop",
            turns=1,
            tokens=TokenRecord(ids=bytes(4 * size), logprobs=bytes(4 * size), sampled=bytes(size)),
            trainer_logprobs=bytes(4 * size),
        )
        for size in [tokens - 15, *[1] * 15]
    ]
    samples = StepSamples(tenant="acme", task="a", pool="tiny", version=1, attempts=attempts)
    answer = SamplesAnswer(task="a", steps=list(range(10**6, 10**6 + KEPT_STEPS)), samples=samples)
    assert len(answer.model_dump_json()) < MAX_ANSWER_BYTES


def test_components_that_are_no_numbers_are_left_out(policy: Policy) -> None:
    groups = [
        replace(group, trajectories=tuple(replace(one, components={"a": 1.0, "b": float("nan")}) for one in group.trajectories))
        for group in groups_of("a", 0)
    ]
    assert _kept(policy, groups, samples=1).attempts[0].components == {"a": 1.0}


def test_error_in_keeping_costs_the_samples_and_not_the_step(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _kept(policy, groups_of("a", 0), samples=4)
    monkeypatch.setattr("trainer_svc.algorithm.sample_selection.choose", lambda *_: 1 / 0)
    assert whole.attempts and _kept(policy, groups_of("a", 0), samples=4) == KeptAttempts()
