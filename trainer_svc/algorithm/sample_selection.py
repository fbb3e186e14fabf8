"""Selects attempts of a step to keep for inspection: the best, the worst, and others by seed. Pure.

Nothing is computed for them: the trainer's log-probabilities are those of the step's first pass.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from common.messages import KeptAttempt, TokenRecord
from common.messages.progress import MAX_SAMPLE_BYTES, SAMPLE_TOKEN_BYTES
from common.spec import TaskSpec
from trainer_svc.algorithm.step_metrics import MAX_COMPONENTS, TokenMeasurements
from trainer_svc.batch import Group, Trajectory
from trainer_svc.model.packing import Row, Sample

MAX_NAME_CHARS = 100
"""Maximum characters in the name of a reward component."""

log = structlog.get_logger()


@dataclass(frozen=True)
class KeptAttempts:
    attempts: Sequence[KeptAttempt] = ()
    left_out: int = 0
    """Number of chosen attempts that did not fit in MAX_SAMPLE_BYTES."""


@dataclass(frozen=True, eq=False)
class _Place:
    """One trajectory of the step, with its group and its sample."""

    group: Group
    trajectory: Trajectory
    sample: Sample


def kept_attempts(
    groups: Sequence[Group],
    minibatches: Sequence[Sequence[Sequence[Sample]]],
    passed: Iterable[tuple[Sequence[Row], TokenMeasurements]],
    version: int,
    spec: TaskSpec,
) -> KeptAttempts:
    """Attempts of the step that are stored for inspection. Equal steps keep equal attempts. If an error occurs, it is logged and no attempt
    is kept, since the step does not need them.

    `minibatches`: the result of `step.weighted_samples` for `groups`. `passed`: the rows of each minibatch, with the measurements of the
    minibatch's first update. `version`: the task's version before the step.
    """
    if not spec.keep.samples:
        return KeptAttempts()
    try:
        chosen = choose(_places(groups, minibatches), spec.keep.samples, f"{spec.seed}:{version}")
        parts = _parts(passed, {place.sample for place in chosen})
        attempts, size = list[KeptAttempt](), 0
        for place in chosen:
            size += SAMPLE_TOKEN_BYTES * len(place.trajectory.ids_T)
            if size <= MAX_SAMPLE_BYTES:
                attempts.append(_attempt(place, parts.get(place.sample), version))
    except Exception:
        log.exception("samples_not_kept", version=version + 1)
        return KeptAttempts()
    return KeptAttempts(attempts, len(chosen) - len(attempts))


def choose(places: Sequence[_Place], count: int, seed: str) -> list[_Place]:
    """Up to `count` trajectories: those with the highest and the lowest reward, then alternately a random one from the group of the
    highest, for comparison, and a random one from all groups."""
    ordered = sorted(places, key=lambda place: (-place.trajectory.reward, place.group.group, place.trajectory.member))
    best = ordered[0]
    found = [best, *ordered[:0:-1]][:2]
    others = [place for place in ordered if place not in found]
    random.Random(seed).shuffle(others)
    while others and len(found) < count:
        is_pair = len(found) % 2 == 0
        following = next((place for place in others if place.group is best.group), others[0]) if is_pair else others[0]
        others.remove(following)
        found.append(following)
    return found[:count]


def _places(groups: Sequence[Group], minibatches: Sequence[Sequence[Sequence[Sample]]]) -> list[_Place]:
    dealt = [
        (group, samples)
        for part, minibatch in enumerate(minibatches)
        for group, samples in zip(groups[part :: len(minibatches)], minibatch, strict=True)
    ]
    return [
        _Place(group, trajectory, sample)
        for group, samples in dealt
        for trajectory, sample in zip(group.trajectories, samples, strict=True)
    ]


def _parts(passed: Iterable[tuple[Sequence[Row], TokenMeasurements]], wanted: set[Sample]) -> dict[Sample, NDArray[np.float64]]:
    """Log ratio of trainer to sampler of each sampled token, by sample. `passed`: as in `kept_attempts`; measurements are in the order of
    the rows, and within a row in that of its samples."""
    found: dict[Sample, NDArray[np.float64]] = {}
    for rows, measured in passed:
        start = 0
        for sample in (sample for row in rows for sample in row.samples):
            end = start + len(sample.sampled_N)
            if sample in wanted:
                found[sample] = measured.log_ratio_N[start:end]
            start = end
    return found


def _attempt(place: _Place, log_ratio_N: NDArray[np.float64] | None, version: int) -> KeptAttempt:
    """The trajectory as a record to store. `log_ratio_N`: None for an attempt without sampled tokens."""
    one, sampled_N = place.trajectory, place.sample.sampled_N
    trainer_T = np.zeros(len(one.ids_T), "<f4")
    if log_ratio_N is not None:
        trainer_T[sampled_N] = one.sampler_logprobs_T[sampled_N] + log_ratio_N
    finite = [(name[:MAX_NAME_CHARS], float(value)) for name, value in sorted(one.components.items()) if np.isfinite(value)]
    return KeptAttempt(
        group=place.group.group,
        member=one.member,
        version=version - place.group.staleness,
        reward=one.reward,
        components=dict(finite[:MAX_COMPONENTS]),
        advantage=place.sample.advantage,
        finish="length" if one.truncated else "stop",
        turns=int(np.count_nonzero(np.diff(one.sampled_T, prepend=0) == 1)),
        tokens=TokenRecord(
            ids=one.ids_T.astype("<i4").tobytes(),
            logprobs=one.sampler_logprobs_T.astype("<f4").tobytes(),
            sampled=one.sampled_T.astype(np.uint8).tobytes(),
        ),
        trainer_logprobs=trainer_T.tobytes(),
    )
