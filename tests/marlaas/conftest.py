"""A minimal scheduler: it answers jobs with the real one's events."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import (
    AdapterRef,
    Canary,
    CheckpointRef,
    ControlTask,
    Event,
    StoredStep,
    SubmitTask,
    TaskStatus,
    WeightUpdated,
    as_json,
)
from common.spec import TaskSpec
from tests.conftest import at_work

STEPS = 3
SPEC: dict[str, JsonValue] = {"name": "gcd", "tenant": "acme", "pool": "tiny", "steps": STEPS, "environment": {"name": "reasoning_gym:gcd"}}


class Answering:
    """Accepts tasks of pool 'tiny', trains all steps at once, and rejects all others. Tasks named 'slow' never end."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self._bus = bus
        self._folder = folder
        self._sent = 0

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        verb = delivery.subject.split(".")[1]
        if verb == "submit":
            async for out in self._submit(delivery.read(SubmitTask)):
                yield out
            return
        job = delivery.read(ControlTask)
        name = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}[verb]
        status = await self._bus.kv.get(streams.TASKS_BUCKET, job.task, TaskStatus)
        assert status is not None
        state = "running" if verb == "resume" else name
        await self._bus.kv.put(streams.TASKS_BUCKET, job.task, status.model_copy(update={"state": state, "reason": job.reason}))
        yield self._event(job.tenant, job.task, name, {"reason": job.reason})

    async def _submit(self, job: SubmitTask) -> AsyncIterator[Outgoing]:
        spec = TaskSpec.model_validate(job.spec)
        if spec.pool != "tiny":
            yield self._event(job.tenant, job.task, "rejected", {"reasons": [f"pool: no pool '{spec.pool}' here", "and another reason"]})
            return
        status = TaskStatus(
            tenant=job.tenant, task=job.task, name=spec.name, pool=spec.pool, state="running", version=0, steps=spec.steps,
            submitted_s=time.time(), updated_s=time.time(),
        )  # fmt: skip
        await self._bus.kv.put(streams.TASKS_BUCKET, job.task, status)  # before its event, as the scheduler does
        yield self._event(job.tenant, job.task, "accepted")
        if spec.name == "slow":
            return
        for version in range(1, spec.steps + 1):
            adapter = await self._adapter(job.task, version)
            checkpoint = CheckpointRef(**dict(adapter.blob))
            update = WeightUpdated(
                tenant=job.tenant, task=job.task, pool=spec.pool, version=version, adapter=adapter, checkpoint=checkpoint,
                metrics={}, trained_tokens=10, started_s=0, finished_s=1,
            )  # fmt: skip
            yield Outgoing(streams.weight_updated(spec.pool, job.task), update, f"weights:{job.task}:{version}")
            stored = as_json(StoredStep(adapter=adapter, checkpoint=checkpoint))
            yield self._event(job.tenant, job.task, "step", step_data(version) | {"stored": stored})
            await self._bus.kv.put(
                streams.TASKS_BUCKET, job.task, status.model_copy(update={"version": version, "adapter": adapter, "reward": version / 10})
            )
        yield self._event(job.tenant, job.task, "finished")
        last = await self._bus.kv.get(streams.TASKS_BUCKET, job.task, TaskStatus)
        assert last is not None
        await self._bus.kv.put(streams.TASKS_BUCKET, job.task, last.model_copy(update={"state": "finished"}))

    async def _adapter(self, task: str, version: int) -> AdapterRef:
        folder = self._folder / f"{task}.v{version}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(f'{{"version": {version}}}')
        blob = await Blobs(self._bus).put_folder(f"adapters-{task}-v{version}", folder)
        return AdapterRef(task=task, version=version, rank=8, blob=blob, canary=Canary(ids=b"", logprobs=b""))

    def _event(self, tenant: str, task: str, name: str, data: dict[str, JsonValue] | None = None) -> Outgoing:
        self._sent += 1
        event = Event.model_validate({"tenant": tenant, "task": task, "event": name, "at_s": time.time(), "data": data or {}})
        return Outgoing(streams.events(tenant, task), event, f"event:{self._sent}")


def step_data(version: int) -> dict[str, JsonValue]:
    return {
        "version": version,
        "reward": version / 10,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "sampled_tokens": 100,
        "groups": 2,
        "metrics": {"loss": 0.25},
        "times": {"first_sampled_s": version * 10.0, "batched_s": version * 10.0 + 5, "trained_s": version * 10.0 + 7},
    }


@pytest.fixture
async def scheduler(bus: Bus, tmp_path: Path) -> AsyncGenerator[Answering]:
    """It answers for as long as the test runs."""
    answering = Answering(bus, tmp_path / "made")
    async with at_work(bus.consume(streams.SCHEDULER_JOBS, answering.handle, Slots(1))):
        yield answering
