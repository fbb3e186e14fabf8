"""The Python SDK: submit tasks, follow them, fetch their adapters.

    async with Client.connect("nats://127.0.0.1:4222") as client:
        task = await client.submit(tomllib.loads(Path("task.toml").read_text()))
        async for event in client.watch(task):
            print(event.event, event.data)
        await client.pull(task, Path("adapter"))

`marlaas.sync.connect` gives the same without asyncio. There is no other service behind this: it speaks to the scheduler
through NATS, as any NATS client may.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import JsonValue

from common import streams
from common.blobs import Blobs, StoreUsage
from common.bus import BucketNotFoundError, Bus, NatsError, Outgoing, objection_to_address
from common.errors import Retry
from common.messages import (
    AdapterRef,
    ControlTask,
    Event,
    Message,
    PreviewTask,
    PruneTasks,
    ReplicaReport,
    ResendLetter,
    SetTenant,
    SubmitTask,
    TaskStatus,
)
from common.spec import TaskSpec
from common.task_states import ENDED
from marlaas.answers import answer_to, answer_to_submission
from marlaas.comparison import Comparison, Evaluated, compare, read_evaluations
from marlaas.download import Pruned, Stored, download_adapter, make_way, stored_by_task, whole_number
from marlaas.errors import ClientError, NoAnswer, TaskRejected, UnknownTask, WrongId, check_id, rejection_reasons
from marlaas.failures import Failure, failure_of, read_failure
from marlaas.preview import Preview
from marlaas.task_file import given_values, new_task_id

__all__ = [
    "DEFAULT_URL", "Client", "ClientError", "Failure", "NoAnswer", "Preview", "Pruned", "Stored", "TaskRejected", "UnknownTask", "WrongId",
    "check_id", "make_way", "new_task_id",
]  # fmt: skip

DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""Seconds until a task is accepted or rejected; the environment is built once before the answer."""
DELETE_TIMEOUT_S = 900.0
"""Seconds until a task is deleted: about one per 100,000 trajectories, and the time that NATS needs for its blobs."""
V = TypeVar("V", bound=Message)
Verb = Literal["cancel", "pause", "resume"]


class Client:
    """One user's connection; create it with `connect`."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._bus = bus
        self._url = url

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str = DEFAULT_URL, *, timeout_s: float = CONNECT_TIMEOUT_S) -> AsyncGenerator["Client"]:
        """Raises: ClientError when `url` is no address; NoAnswer when NATS is unavailable; Fatal when it refuses the credentials."""
        if objection := objection_to_address(url):
            raise ClientError(objection)
        try:
            async with asyncio.timeout(timeout_s):
                bus = await Bus.connect(url, "client")
        except TimeoutError:
            raise NoAnswer(f"NATS does not answer at {_shown(url)}; is the stack running?") from None
        async with bus:
            yield cls(bus, url)

    # --------------------------------------------------------------------------------------------------------- requests

    async def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Submit a task and wait until it is accepted; returns its id. With an id given, resubmitting is harmless.

        What `spec` leaves out, or never set, takes the pool's defaults.
        Raises: WrongId; TaskRejected with the reasons; NoAnswer when the scheduler does not answer.
        """
        if task is not None:
            check_id(task)
        given, tenant, name = given_values(spec)
        resubmitted = task is not None
        task = task or new_task_id(name)
        body = SubmitTask(task=task, tenant=tenant, spec=given)
        digest = hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]
        try:
            async with asyncio.timeout(timeout_s):
                before = await self._bus.streams.last(streams.EVENTS, streams.events(tenant, task)) if resubmitted else None
                await self._bus.publish(Outgoing(streams.submit(tenant), body, f"submit:{task}:{digest}"))
                answer = await answer_to_submission(self._bus, tenant, task, before.sequence if before else 0)
        except (TimeoutError, Retry):
            raise NoAnswer(
                f"the scheduler does not answer: task {task} was neither accepted nor rejected within {timeout_s:.0f} s;"
                f" it is not lost if NATS took it: look at `marlaas status` later, or resubmit it with the same id"
            ) from None
        if answer.event == "rejected":
            raise TaskRejected(task, rejection_reasons(answer))
        return task

    async def preview(self, spec: TaskSpec | dict[str, JsonValue], *, timeout_s: float = ANSWER_TIMEOUT_S) -> Preview:
        """Outcome of `submit`, without submitting. Raises: TaskRejected when a field is wrong; NoAnswer, also from an older scheduler."""
        given, tenant, _ = given_values(spec)
        request = secrets.token_hex(6)
        out = Outgoing(streams.preview(tenant), PreviewTask(tenant=tenant, request=request, spec=given), f"preview:{request}")
        about = streams.events(tenant, "none")
        return Preview.of(await answer_to(self._bus, out, about, lambda event: event.data.get("request") == request, timeout_s))

    async def cancel(self, task: str, reason: str = "") -> None:
        """End a task; trained versions stay."""
        await self._control("cancel", task, reason)

    async def pause(self, task: str, reason: str = "") -> None:
        """Admit no new work of a task; work in flight finishes."""
        await self._control("pause", task, reason)

    async def resume(self, task: str, reason: str = "") -> None:
        await self._control("resume", task, reason)

    async def delete(self, task: str, *, timeout_s: float = DELETE_TIMEOUT_S) -> int:
        """Delete a task that has ended: adapters, checkpoints, messages and rows; its ledger is kept. Returns the bytes freed.

        Adapters that other tasks started from stay until those are deleted too.
        Raises: WrongId; UnknownTask; ClientError when it has not ended, or was deleted already; NoAnswer.
        """
        try:
            status = await self.status(task)
        except UnknownTask:
            if await self._was_deleted(task):
                raise ClientError(f"task {task} was deleted already; only what it consumed is kept") from None
            raise
        if status.state not in ENDED:
            raise ClientError(f"task {task} is {status.state}; end it first with `marlaas cancel {task}`, then delete it")
        message = ControlTask(task=task, tenant=status.tenant)
        out = Outgoing(streams.control("delete", status.tenant), message, f"delete:{task}:{secrets.token_hex(6)}")
        about = streams.events(status.tenant, task)
        answer = await answer_to(
            self._bus, out, about, lambda event: event.event == "deleted" or event.data.get("verb") == "delete", timeout_s
        )
        if answer.event == "rejected":
            raise ClientError("; ".join(rejection_reasons(answer)))
        return whole_number(answer, "bytes")

    async def prune(
        self, tenant: str | None = None, *, ended_before_s: float | None = None, dry_run: bool = False, timeout_s: float = DELETE_TIMEOUT_S
    ) -> list[Pruned]:
        """Delete superseded blobs of one tenant's tasks, or of all tenants'; the scheduler does so by itself every few minutes.

        `ended_before_s`: delete also tasks that ended more seconds ago. `dry_run`: report only.

        Raises: NoAnswer.
        """
        tenants = [tenant] if tenant is not None else sorted({status.tenant for status in await self.tasks()})
        found: list[Pruned] = []
        for one in tenants:
            request = secrets.token_hex(6)
            prune = PruneTasks(tenant=one, request=request, ended_before_s=ended_before_s, dry_run=dry_run)
            out, about = Outgoing(streams.prune(one), prune, f"prune:{request}"), streams.events(one, "none")
            answer = await answer_to(self._bus, out, about, lambda event, request=request: event.data.get("request") == request, timeout_s)
            found.append(Pruned.of(one, answer))
        return found

    async def resend(self, letter: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Resend the message of a dead letter. Safe to repeat: a message sent twice counts once.

        Raises: ClientError when there is no such letter, or its message is no longer needed; NoAnswer.
        """
        async with self._reading():
            failure = await read_failure(self._bus, letter)
        tenant = (await self.status(failure.task)).tenant if failure.task else failure.sender
        out = Outgoing(streams.resend(tenant), ResendLetter(tenant=tenant, letter=letter), f"resend:{letter}:{secrets.token_hex(6)}")
        about = streams.events(tenant, failure.task or "none")
        answer = await answer_to(self._bus, out, about, lambda event: event.data.get("letter") == letter, timeout_s)
        if answer.event == "rejected":
            raise ClientError("; ".join(rejection_reasons(answer)))

    async def set_tenant(self, request: SetTenant, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, JsonValue]:
        """Change a tenant's weight and limits; returns all of them, and their use. Raises: ClientError when it is unknown; NoAnswer."""
        out = Outgoing(streams.set_tenant(request.tenant), request, f"set-tenant:{request.request}")
        about = streams.events(request.tenant, "none")
        answer = await answer_to(self._bus, out, about, lambda event: event.data.get("request") == request.request, timeout_s)
        if "reasons" in answer.data:
            raise ClientError("; ".join(rejection_reasons(answer)))
        return {name: value for name, value in answer.data.items() if name != "request"}

    # ---------------------------------------------------------------------------------------------------------- reading

    async def tasks(self) -> list[TaskStatus]:
        """Every task that the scheduler knows, oldest first."""
        found = await self._all(streams.TASKS_BUCKET, TaskStatus)
        return sorted(found, key=lambda status: (status.submitted_s, status.task))

    async def status(self, task: str) -> TaskStatus:
        """Raises: WrongId; UnknownTask, naming similar ones; NoAnswer."""
        check_id(task)
        async with self._reading():
            found = await self._bus.kv.get(streams.TASKS_BUCKET, task, TaskStatus)
        if found is None:
            raise UnknownTask.among(task, [status.task for status in await self.tasks()])
        return found

    async def failures(self, task: str | None = None) -> list[Failure]:
        """Dead letters of one task, or of all, oldest first. Kept for 30 days.

        Raises: WrongId; UnknownTask; NoAnswer.
        """
        if task is not None:
            await self.status(task)
        async with self._reading():
            found = [letter async for letter in self._bus.streams.stored(streams.FAILED, streams.failed("*", task or "*"))]
        return [failure for letter in found if (failure := failure_of(letter)) is not None]

    async def evaluations(self, task: str) -> Evaluated:
        """Evaluations of the task that its stored events report. Raises: WrongId; UnknownTask; NoAnswer."""
        await self.status(task)
        async with self._reading():
            return await read_evaluations(self._bus, task)

    async def compare(self, first: str, second: str, *, protocol: str | None = None, version: str = "last") -> Comparison:
        """Compare two tasks of one tenant prompt by prompt. Raises: as `evaluations`; ClientError when they cannot be compared."""
        tenants = [(await self.status(task)).tenant for task in (first, second)]
        if tenants[0] != tenants[1]:
            raise ClientError(f"task {first} is of tenant '{tenants[0]}', {second} of '{tenants[1]}'; compare tasks of one tenant")
        return compare(await self.evaluations(first), await self.evaluations(second), protocol=protocol, version=version)

    async def stored(self) -> dict[str, Stored]:
        """Blobs that each task has stored; tasks without blobs are absent. Raises: NoAnswer."""
        async with self._reading():
            return await stored_by_task(self._bus)

    async def store_usage(self) -> StoreUsage:
        """Use of the blob store. Raises: NoAnswer."""
        async with self._reading():
            return await Blobs(self._bus).usage()

    async def replicas(self) -> list[ReplicaReport]:
        """Every live replica of every service."""
        found = await self._all(streams.REPLICAS_BUCKET, ReplicaReport)
        return sorted(found, key=lambda report: (report.service, report.replica))

    async def watch(self, *tasks: str, from_now: bool = False) -> AsyncIterator[Event]:
        """Past and future events of these tasks, in order; ends when all of them have ended.

        `from_now`: future events only. Without tasks: future events of every task, without end.
        Raises: WrongId; NoAnswer when NATS knows no stack.
        """
        for task in tasks:
            check_id(task)
        await self.replicas()
        awaited = set(tasks)
        accepted: set[str] = set()
        subject = f"events.*.{tasks[0]}" if len(tasks) == 1 else "events.>"
        past = await self._bus.streams.last(streams.EVENTS, subject) if from_now or not tasks else None
        async for delivery in self._bus.streams.follow(streams.EVENTS, subject, new_only=not tasks):
            is_past = past is not None and delivery.sequence <= past.sequence
            if is_past and not tasks:
                continue  # NATS restarted before any event: then nats-py follows from the stream's beginning
            event = delivery.read(Event)
            if tasks and event.task not in awaited:
                continue
            if not is_past:
                yield event
            if event.event == "accepted":
                accepted.add(event.task)
            if event.event == "rejected" and event.task in accepted:
                continue  # another submission under the same id
            if tasks and event.event in ENDED:
                awaited.discard(event.task)
                if not awaited:
                    return

    async def wait(self, task: str) -> TaskStatus:
        """Wait until the task has ended; returns its status."""
        status = await self.status(task)
        if status.state in ENDED:
            return status
        async for key, value in self._bus.kv.watch(streams.TASKS_BUCKET, TaskStatus):
            if key == task and value is not None and value.state in ENDED:
                return value
        raise NoAnswer(f"the connection to NATS ended while waiting for task {task}")

    async def pull(self, task: str, folder: Path, version: int | None = None) -> AdapterRef:
        """Write one version of a task's adapter, the latest unless given, to `folder`: a PEFT folder.

        Raises: UnknownTask; ClientError when there is no such version, or the folder is not empty.
        """
        return await download_adapter(self._bus, await self.status(task), folder, version)

    async def _control(self, verb: Verb, task: str, reason: str) -> None:
        status = await self.status(task)
        if status.state in ENDED:
            raise ClientError(f"task {task} is {status.state} already; there is nothing to {verb}")
        message = ControlTask(task=task, tenant=status.tenant, reason=reason)
        try:
            await self._bus.publish(Outgoing(streams.control(verb, status.tenant), message, f"{verb}:{task}:{secrets.token_hex(6)}"))
        except Retry as error:
            raise NoAnswer(f"could not {verb} task {task}: {error}") from None

    async def _was_deleted(self, task: str) -> bool:
        events = [delivery.read(Event).event async for delivery in self._bus.streams.stored(streams.EVENTS, streams.events("*", task))]
        return "deleted" in events

    async def _all(self, bucket: str, model: type[V]) -> list[V]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._bus.kv.values(bucket, model)
        except BucketNotFoundError:
            raise NoAnswer(f"NATS at {_shown(self._url)} knows no MARLaaS stack; start the services first") from None
        except (TimeoutError, NatsError, Retry) as error:
            raise NoAnswer(f"NATS at {_shown(self._url)} does not answer: {str(error) or type(error).__name__}") from None

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[None]:
        """Raises: NoAnswer where the bus cannot read inside the block, because NATS knows no stack or for the bus's own reason."""
        try:
            yield
        except Retry as error:
            await self.tasks()
            raise NoAnswer(str(error)) from None


def _shown(url: str) -> str:
    """The URL without its password."""
    return url.rpartition("@")[2]
