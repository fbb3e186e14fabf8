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
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import JsonValue

from common import streams
from common.blobs import BLOB_NAME, Blobs, StoreUsage
from common.bus import BucketNotFoundError, Bus, Delivery, NatsError, Outgoing, objection_to_address
from common.errors import MarlaasError, Reject, Retry
from common.messages import (
    AdapterRef,
    ControlTask,
    DeadLetter,
    Event,
    Message,
    PruneTasks,
    ReplicaReport,
    ResendLetter,
    StoredStep,
    SubmitTask,
    TaskStatus,
)
from common.spec import TASK_ID_PATTERN, TaskSpec, parse_spec
from common.task_states import ENDED

DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""For a task to be accepted or rejected: the environment is built once before the answer."""
DELETE_TIMEOUT_S = 900.0
"""For a task to be deleted: about a second for every 100,000 of its trajectories, and as long as NATS needs for its blobs."""
REPEATED_TIMEOUT_S = 3.0
"""For an objection to a task that is submitted again under its id."""


V = TypeVar("V", bound=Message)
Verb = Literal["cancel", "pause", "resume"]


class ClientError(MarlaasError):
    """What was asked cannot be done; the text says why."""


class TaskRejected(ClientError):
    """The task was refused; `reasons` say what to change."""

    def __init__(self, task: str, reasons: list[str]) -> None:
        super().__init__("\n".join([f"task {task} was rejected:", *(f"  {reason}" for reason in reasons)]))
        self.task = task
        self.reasons = reasons


class NoAnswer(ClientError):
    """NATS or the scheduler does not answer."""


class UnknownTask(ClientError):
    """Nothing is known of such a task."""


class WrongId(ClientError):
    """No task can have such an id."""


@dataclass(frozen=True)
class Failure:
    """A message that was given up: a dead letter, as people read it."""

    letter: int
    """Names it, to have its message sent again."""
    task: str | None
    """None for a job that could not be taken."""
    stage: str
    subject: str
    reason: str
    attempts: int


@dataclass(frozen=True)
class Pruned:
    """What `prune` deleted of one tenant, or would delete."""

    tenant: str
    tasks: list[str]
    """Deleted, a thousand at most."""
    task_count: int
    task_bytes: int
    blobs: int
    """Of other tasks, which no rule of theirs keeps any more."""
    blob_bytes: int

    @property
    def bytes(self) -> int:
        return self.task_bytes + self.blob_bytes


@dataclass
class Stored:
    """What one task has in the blob store, in bytes."""

    adapters: int = 0
    checkpoints: int = 0
    batches: int = 0

    @property
    def bytes(self) -> int:
        return self.adapters + self.checkpoints + self.batches


class Client:
    """A connection of one user. Made by `connect`."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._bus = bus
        self._url = url

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str = DEFAULT_URL, *, timeout_s: float = CONNECT_TIMEOUT_S) -> AsyncGenerator["Client"]:
        """Raises: ClientError when `url` is no address; NoAnswer when NATS is not there; Fatal when it refuses the credentials."""
        if objection := objection_to_address(url):
            raise ClientError(objection)
        try:
            async with asyncio.timeout(timeout_s):
                bus = await Bus.connect(url, "client")
        except TimeoutError:
            raise NoAnswer(f"NATS does not answer at {_shown(url)}; is the stack running?") from None
        try:
            yield cls(bus, url)
        finally:
            await bus.close()

    # ----------------------------------------------------------------------------------------------------------- asking

    async def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Submit a task and wait until it is accepted; returns its id. With an id given, submitting again is harmless.

        Raises: WrongId; TaskRejected with the reasons; NoAnswer when the scheduler gives none.
        """
        if task is not None:
            check_id(task)
        spec = spec if isinstance(spec, TaskSpec) else _checked(spec)
        again = task is not None
        task = task or new_task_id(spec.name)
        body = SubmitTask(task=task, tenant=spec.tenant, spec=spec.model_dump(mode="json"))
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16]
        try:
            async with asyncio.timeout(timeout_s):
                before = await self._bus.last(streams.EVENTS, streams.events(spec.tenant, task)) if again else None
                await self._bus.publish(Outgoing(streams.submit(spec.tenant), body, f"submit:{task}:{digest}"))
                answer = await self._answer(spec.tenant, task, before.sequence if before else 0)
        except (TimeoutError, Retry):
            raise NoAnswer(
                f"the scheduler does not answer: task {task} was neither accepted nor rejected within {timeout_s:.0f} s;"
                f" it is not lost if NATS took it: look at `marlaas status` later, or submit it again with the same id"
            ) from None
        if answer.event == "rejected":
            raise TaskRejected(task, _reasons(answer))
        return task

    async def cancel(self, task: str, reason: str = "") -> None:
        """End a task. What was trained so far stays."""
        await self._control("cancel", task, reason)

    async def pause(self, task: str, reason: str = "") -> None:
        """Stop giving a task new work; what is in flight is finished."""
        await self._control("pause", task, reason)

    async def resume(self, task: str, reason: str = "") -> None:
        await self._control("resume", task, reason)

    async def delete(self, task: str, *, timeout_s: float = DELETE_TIMEOUT_S) -> int:
        """Delete a task that has ended: adapters, checkpoints, messages and rows; what it consumed is kept. Returns the bytes freed.

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
        answer = await self._answer_to(out, about, lambda event: event.event == "deleted" or event.data.get("verb") == "delete", timeout_s)
        if answer.event == "rejected":
            raise ClientError("; ".join(_reasons(answer)))
        return _whole(answer, "bytes")

    async def prune(
        self, tenant: str | None = None, *, ended_before_s: float | None = None, dry_run: bool = False, timeout_s: float = DELETE_TIMEOUT_S
    ) -> list[Pruned]:
        """Free what no rule of a tenant's tasks keeps any more, of all tenants where none is named; the scheduler does so by itself
        every few minutes. With `ended_before_s`, delete also the tasks that ended longer ago. `dry_run`: say it only.

        Raises: NoAnswer.
        """
        tenants = [tenant] if tenant is not None else sorted({status.tenant for status in await self.tasks()})
        found: list[Pruned] = []
        for one in tenants:
            request = secrets.token_hex(6)
            wish = PruneTasks(tenant=one, request=request, ended_before_s=ended_before_s, dry_run=dry_run)
            out, about = Outgoing(streams.prune(one), wish, f"prune:{request}"), streams.events(one, "none")
            answer = await self._answer_to(out, about, lambda event, request=request: event.data.get("request") == request, timeout_s)
            names = answer.data.get("tasks")
            numbers = {name: _whole(answer, name) for name in ("task_count", "task_bytes", "blobs", "blob_bytes")}
            found.append(Pruned(one, [str(name) for name in names] if isinstance(names, list) else [], **numbers))
        return found

    async def resend(self, letter: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Have the message of a dead letter sent again. Safe to repeat: whatever is sent twice counts once.

        Raises: ClientError when there is no such letter, or nobody waits for its message any more; NoAnswer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                failure = await self._failure(letter)
                tenant = (await self.status(failure.task)).tenant if failure.task else _sender(failure)
                subject = streams.events(tenant, failure.task or "none")
                before = await self._bus.last(streams.EVENTS, subject)
                message = ResendLetter(tenant=tenant, letter=letter)
                await self._bus.publish(Outgoing(streams.resend(tenant), message, f"resend:{letter}:{secrets.token_hex(6)}"))
                async for delivery in self._bus.follow(streams.EVENTS, subject):
                    event = delivery.read(Event)
                    if delivery.sequence <= (before.sequence if before else 0) or event.data.get("letter") != letter:
                        continue
                    if event.event == "rejected":
                        raise ClientError("; ".join(_reasons(event)))
                    return
        except (TimeoutError, Retry):
            raise NoAnswer(f"the scheduler does not answer: nothing is known of letter {letter} after {timeout_s:.0f} s") from None

    # ---------------------------------------------------------------------------------------------------------- looking

    async def tasks(self) -> list[TaskStatus]:
        """Every task that the scheduler knows, oldest first."""
        found = await self._all(streams.TASKS_BUCKET, TaskStatus)
        return sorted(found, key=lambda status: (status.submitted_s, status.task))

    async def status(self, task: str) -> TaskStatus:
        """Raises: WrongId; UnknownTask, naming similar ones; NoAnswer."""
        check_id(task)
        try:
            found = await self._bus.get_value(streams.TASKS_BUCKET, task, TaskStatus)
        except Retry as error:
            raise await self._why(error) from None
        if found is None:
            raise UnknownTask(f"no task '{task}'{_similar(task, [status.task for status in await self.tasks()])}")
        return found

    async def failures(self, task: str | None = None) -> list[Failure]:
        """Messages that were given up, oldest first: those of one task, or all. Kept for 30 days.

        Raises: WrongId; UnknownTask; NoAnswer.
        """
        if task is not None:
            await self.status(task)
        try:
            found = [letter async for letter in self._bus.stored(streams.FAILED, streams.failed("*", task or "*"))]
        except Retry as error:
            raise await self._why(error) from None
        return [failure for letter in found if (failure := _failure(letter)) is not None]

    async def stored(self) -> dict[str, Stored]:
        """What each task has in the blob store; tasks without blobs are absent. Raises: NoAnswer."""
        found: dict[str, Stored] = {}
        try:
            for blob in await Blobs(self._bus).listed():
                if name := BLOB_NAME.fullmatch(blob.name):
                    kinds = found.setdefault(name["task"], Stored())
                    match name["kind"]:
                        case "adapter":
                            kinds.adapters += blob.size_bytes
                        case "checkpoint":
                            kinds.checkpoints += blob.size_bytes
                        case _:
                            kinds.batches += blob.size_bytes
        except Retry as error:
            raise await self._why(error) from None
        return found

    async def store_usage(self) -> StoreUsage:
        """How full the blob store is. Raises: NoAnswer."""
        try:
            return await Blobs(self._bus).usage()
        except Retry as error:
            raise await self._why(error) from None

    async def replicas(self) -> list[ReplicaReport]:
        """Every replica of a service that reported in the last seconds."""
        found = await self._all(streams.REPLICAS_BUCKET, ReplicaReport)
        return sorted(found, key=lambda report: (report.service, report.replica))

    async def watch(self, *tasks: str, from_now: bool = False) -> AsyncIterator[Event]:
        """What happened to these tasks and what happens next, in order; ends when all of them have ended.

        With `from_now`, what happened before is left out. Without tasks: everything that happens from now on to any task, without end.
        Raises: WrongId; NoAnswer when NATS knows no stack.
        """
        for task in tasks:
            check_id(task)
        await self.replicas()
        awaited = set(tasks)
        accepted: set[str] = set()
        subject = f"events.*.{tasks[0]}" if len(tasks) == 1 else "events.>"
        past = await self._bus.last(streams.EVENTS, subject) if from_now or not tasks else None
        async for delivery in self._bus.follow(streams.EVENTS, subject, new_only=not tasks):
            is_past = past is not None and delivery.sequence <= past.sequence
            if is_past and not tasks:
                continue  # NATS was started anew before anything happened: then nats-py follows from the stream's beginning
            event = delivery.read(Event)
            if tasks and event.task not in awaited:
                continue
            if not is_past:
                yield event
            if event.event == "accepted":
                accepted.add(event.task)
            if event.event == "rejected" and event.task in accepted:
                continue  # somebody else's attempt to use the id again
            if tasks and event.event in ENDED:
                awaited.discard(event.task)
                if not awaited:
                    return

    async def wait(self, task: str) -> TaskStatus:
        """The task's status once it has ended, however it did."""
        status = await self.status(task)
        if status.state in ENDED:
            return status
        async for key, value in self._bus.watch_values(streams.TASKS_BUCKET, TaskStatus):
            if key == task and value is not None and value.state in ENDED:
                return value
        raise NoAnswer(f"the connection to NATS ended while waiting for task {task}")

    # --------------------------------------------------------------------------------------------------------- fetching

    async def pull(self, task: str, folder: Path, version: int | None = None) -> AdapterRef:
        """Write one version of a task's adapter, the latest unless given, to `folder`: a PEFT folder.

        Raises: UnknownTask; ClientError when there is no such version, or the folder holds something else.
        """
        status = await self.status(task)
        adapter = status.adapter if version in (None, status.version) else await self._adapter(status, version)
        if adapter is None:
            raise ClientError(f"task {task} has no adapter yet: no step is trained")
        make_way(folder)
        try:
            await Blobs(self._bus).fetch_folder(adapter.blob, folder)
        except Reject:
            raise ClientError(await self._what_is_stored(status, adapter.version)) from None
        return adapter

    async def _what_is_stored(self, status: TaskStatus, version: int) -> str:
        names = [BLOB_NAME.fullmatch(blob.name) for blob in await Blobs(self._bus).listed() if blob.is_whole]
        there = sorted({int(name["version"]) for name in names if name and (name["task"], name["kind"]) == (status.task, "adapter")})
        shown = ", ".join(map(str, there[-20:])) or "none"
        return (
            f"version {version} of task {status.task} is no longer stored; versions that are: {shown}. The section keep of its file decides"
        )

    async def _adapter(self, status: TaskStatus, version: int | None) -> AdapterRef:
        """An older version's adapter, as the event of its step told it."""
        known: list[int] = []
        async for delivery in self._bus.stored(streams.EVENTS, streams.events(status.tenant, status.task)):
            stored = StoredStep.of(delivery.read(Event))
            if stored is not None and stored.adapter.version == version:
                return stored.adapter
            if stored is not None:
                known.append(stored.adapter.version)
        kept = f"{min(known)} to {max(known)}" if known else "none"
        raise ClientError(f"task {status.task} has no version {version}; known are: {kept}")

    # ---------------------------------------------------------------------------------------------------------- private

    async def _control(self, verb: Verb, task: str, reason: str) -> None:
        status = await self.status(task)
        if status.state in ENDED:
            raise ClientError(f"task {task} is {status.state} already; there is nothing to {verb}")
        message = ControlTask(task=task, tenant=status.tenant, reason=reason)
        try:
            await self._bus.publish(Outgoing(streams.control(verb, status.tenant), message, f"{verb}:{task}:{secrets.token_hex(6)}"))
        except Retry as error:
            raise NoAnswer(f"could not {verb} task {task}: {error}") from None

    async def _answer_to(self, out: Outgoing, about: str, is_answer: Callable[[Event], bool], timeout_s: float) -> Event:
        """Publish a job and wait for the event on subject `about` that answers it. Raises: NoAnswer."""
        try:
            async with asyncio.timeout(timeout_s):
                before = await self._bus.last(streams.EVENTS, about)
                await self._bus.publish(out)
                async for delivery in self._bus.follow(streams.EVENTS, about):
                    if delivery.sequence > (before.sequence if before else 0) and is_answer(event := delivery.read(Event)):
                        return event
        except (TimeoutError, Retry):
            pass
        raise NoAnswer(f"the scheduler does not answer {out.subject} within {timeout_s:.0f} s; it is done later if NATS took it")

    async def _was_deleted(self, task: str) -> bool:
        told = [delivery.read(Event).event async for delivery in self._bus.stored(streams.EVENTS, streams.events("*", task))]
        return "deleted" in told

    async def _failure(self, letter: int) -> Failure:
        try:
            found = _failure(await self._bus.read(streams.FAILED, letter))
        except LookupError:
            found = None
        if found is None:
            raise ClientError(f"there is no dead letter {letter}; `marlaas failures` lists those there are")
        return found

    async def _answer(self, tenant: str, task: str, before: int) -> Event:
        """Accepted or rejected; where the id was used before (`before` is its last event then), the answer to this time.

        The scheduler says nothing when the same is submitted again: then the first answer stands.
        """
        earlier: Event | None = None
        try:
            async with asyncio.timeout(REPEATED_TIMEOUT_S if before else None):
                async for delivery in self._bus.follow(streams.EVENTS, streams.events(tenant, task)):
                    event = delivery.read(Event)
                    if event.event not in ("accepted", "rejected"):
                        continue
                    if delivery.sequence > before:
                        return event
                    earlier = event
        except TimeoutError:
            if earlier is not None:
                return earlier
            raise
        raise NoAnswer(f"the connection to NATS ended while task {task} was being submitted")

    async def _all(self, bucket: str, model: type[V]) -> list[V]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._bus.all_values(bucket, model)
        except BucketNotFoundError:
            raise NoAnswer(f"NATS at {_shown(self._url)} knows no MARLaaS stack; start the services first") from None
        except (TimeoutError, NatsError, Retry) as error:
            raise NoAnswer(f"NATS at {_shown(self._url)} does not answer: {str(error) or type(error).__name__}") from None

    async def _why(self, error: Retry) -> NoAnswer:
        """That NATS knows no stack, where that is so: the bus says of a value or a message only that it could not be read."""
        try:
            await self.tasks()
        except NoAnswer as answer:
            return answer
        return NoAnswer(str(error))


def _whole(event: Event, name: str) -> int:
    """A number in an event's data."""
    value = event.data.get(name)
    return int(value) if isinstance(value, int | float) else 0


def new_task_id(name: str) -> str:
    """An id that nobody has used: the name, and 48 random bits."""
    return f"{name[:50]}-{secrets.token_hex(6)}"


def check_id(task: str) -> None:
    """Raises: WrongId, saying what an id looks like."""
    if re.fullmatch(TASK_ID_PATTERN, task) is None:
        rule = "small letters, digits and hyphens, 63 at most, a letter or digit first and last"
        raise WrongId(f"'{task}' cannot be the id of a task: {rule}; `marlaas ps` shows those there are")


def _shown(url: str) -> str:
    """Without the password."""
    return url.rpartition("@")[2]


def _failure(delivery: Delivery) -> Failure | None:
    """None when it is no dead letter: anyone may publish there."""
    try:
        letter = delivery.read(DeadLetter)
    except Reject:
        return None
    task = streams.token(delivery.subject, 2)
    return Failure(delivery.sequence, None if task == "none" else task, letter.stage, letter.subject, letter.reason, letter.attempts)


def _sender(failure: Failure) -> str:
    """The tenant of a job that could not be taken."""
    parts = failure.subject.split(".", 2)
    if parts[0] != "jobs" or len(parts) < 3:
        raise ClientError(f"letter {failure.letter} is about no task and no job: '{failure.subject}'")
    return parts[2]


def make_way(folder: Path) -> None:
    """A blob becomes visible by renaming, so its folder must not be there yet."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClientError(f"{folder} exists already; name another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            folder.rmdir()
    except OSError as error:
        raise ClientError(f"cannot write {folder}: {error.strerror}; name another folder") from None


def _checked(spec: dict[str, JsonValue]) -> TaskSpec:
    try:
        return parse_spec(spec)
    except Reject as error:
        raise TaskRejected(str(spec.get("name", "?")), re.split(r"; (?=[\w.]+: )", str(error))) from None


def _reasons(answer: Event) -> list[str]:
    reasons = answer.data.get("reasons", answer.data.get("reason", "no reason given"))
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else [str(reasons)]


def _similar(task: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(task, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else "; `marlaas ps` lists those there are"
