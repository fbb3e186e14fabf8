"""Samples of steps in their NATS stream: the last KEPT_STEPS of each task, one message per step."""

from collections.abc import Sequence

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import StepSamples
from common.messages.progress import KEPT_STEPS

log = structlog.get_logger()


class StoredSamples:
    """Access to stored samples. Raises: Unavailable if NATS does not answer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def steps(self, task: str) -> list[int]:
        """Versions of the task's steps that have samples, ascending."""
        subjects = await self._bus.streams.subjects(streams.SAMPLES, streams.samples("*", task, "*"))
        return sorted(version for subject in subjects if (version := version_of(subject)) is not None)

    async def of_step(self, pool: str, task: str, version: int) -> StepSamples | None:
        """Samples of a step; None if there are none, or they cannot be decoded."""
        found = await self._bus.streams.last(streams.SAMPLES, streams.samples(pool, task, version))
        try:
            return found.read(StepSamples) if found is not None else None
        except Reject as error:
            log.warning("samples_unreadable", task=task, version=version, reason=str(error))
            return None

    async def drop_old(self, pool: str, task: str, version: int) -> None:
        """Erase the samples that exceed KEPT_STEPS once the task is at `version`."""
        if version > KEPT_STEPS:
            await self._bus.streams.erase(streams.SAMPLES, streams.samples(pool, task, version - KEPT_STEPS))

    async def sweep(self) -> None:
        """Erase old samples that were not erased when their task advanced."""
        for subject in superseded(list(await self._bus.streams.subjects(streams.SAMPLES, streams.samples("*", "*", "*")))):
            log.info("messages_swept", subject=subject, messages=await self._bus.streams.erase(streams.SAMPLES, subject))


def version_of(subject: str) -> int | None:
    """Version in a subject of `streams.samples`; None for other subjects."""
    version = streams.token(subject, 3) or ""
    return int(version) if version.isascii() and version.isdigit() else None


def superseded(subjects: Sequence[str]) -> list[str]:
    """Subjects of samples older than the last KEPT_STEPS of their task."""
    versions = {subject: version for subject in subjects if (version := version_of(subject)) is not None}
    latest: dict[str, int] = {}
    for subject, version in versions.items():
        task = streams.token(subject, 2) or ""
        latest[task] = max(version, latest.get(task, 0))
    return [subject for subject, version in versions.items() if version <= latest[streams.token(subject, 2) or ""] - KEPT_STEPS]
