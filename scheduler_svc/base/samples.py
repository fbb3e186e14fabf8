"""Samples of steps in their stream: the last KEPT_STEPS of each task, one message a step."""

from collections.abc import Sequence

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import StepSamples
from common.messages.progress import KEPT_STEPS

log = structlog.get_logger()


class StoredSamples:
    """Raises: Unavailable when NATS does not answer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def steps(self, task: str) -> list[int]:
        """Steps of a task that have samples, ascending."""
        subjects = await self._bus.streams.subjects(streams.SAMPLES, streams.samples("*", task, "*"))
        return sorted(version for subject in subjects if (version := version_of(subject)) is not None)

    async def of_step(self, pool: str, task: str, version: int) -> StepSamples | None:
        """None where there are none, or none that can be read."""
        found = await self._bus.streams.last(streams.SAMPLES, streams.samples(pool, task, version))
        try:
            return found.read(StepSamples) if found is not None else None
        except Reject as error:
            log.warning("samples_unreadable", task=task, version=version, reason=str(error))
            return None

    async def drop_old(self, pool: str, task: str, version: int) -> None:
        """Erase those of the step that is one too many once the task is at `version`."""
        if version > KEPT_STEPS:
            await self._bus.streams.erase(streams.SAMPLES, streams.samples(pool, task, version - KEPT_STEPS))

    async def sweep(self) -> None:
        """Erase old ones that were not dropped when their task advanced."""
        for subject in superseded(list(await self._bus.streams.subjects(streams.SAMPLES, streams.samples("*", "*", "*")))):
            log.info("messages_swept", subject=subject, messages=await self._bus.streams.erase(streams.SAMPLES, subject))


def version_of(subject: str) -> int | None:
    """None where the subject is not one of `streams.samples`."""
    version = streams.token(subject, 3) or ""
    return int(version) if version.isascii() and version.isdigit() else None


def superseded(subjects: Sequence[str]) -> list[str]:
    """Subjects of steps before the last KEPT_STEPS with samples of their task."""
    versions = {subject: version for subject in subjects if (version := version_of(subject)) is not None}
    latest: dict[str, int] = {}
    for subject, version in versions.items():
        task = streams.token(subject, 2) or ""
        latest[task] = max(version, latest.get(task, 0))
    return [subject for subject, version in versions.items() if version <= latest[streams.token(subject, 2) or ""] - KEPT_STEPS]
