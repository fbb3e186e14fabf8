"""Door: asks the scheduler, publishes jobs, and listens to events over NATS.

Jobs are answered by events; a client starts to listen before it publishes a job.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from pydantic import JsonValue

from common import streams
from common.access.credentials import Credentials
from common.bus import Bus, Delivery, Listening, NoResponder, Outgoing
from common.client_api.errors import (
    Changed,
    ClientError,
    NoAnswer,
    NotPermitted,
    RefusedChange,
    TooManyJobs,
    WrongQuestion,
    rejection_reasons,
)
from common.client_api.protocol import AnyDoor, Asking
from common.errors import Forbidden, QueueFull, Reject, Retry, StreamFull, Unavailable
from common.messages import AskRefused, Event, Message
from common.resilience.backoff import Backoff
from common.streams import KIND_HEADER

M = TypeVar("M", bound=Message)

PATIENCE_S = 10.0
"""Seconds for which a question is retried while no scheduler answers."""
ANSWER_S = 12.0
"""Maximum seconds for one answer: slightly more than a scheduler takes to report that it has none."""
PAUSE = Backoff(first_s=0.1, max_s=1.0)


class UnknownHere(ClientError):
    """The tenant has no such task, or the task has no such version."""


class UnknownNamed(UnknownHere):
    """A job names a task, version or resource that the tenant does not have; the text says which."""


class Door(Asking):
    """One user's access to the scheduler over NATS. `tenant`: tenant whose data it reads; None: every tenant's, which a server with keys
    permits only to the operator.
    """

    def __init__(self, bus: Bus, url: str, tenant: str | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._bus = bus
        self._shown = url.rpartition("@")[2]
        self.tenant = tenant
        self._patience_s = patience_s

    @property
    def key(self) -> Credentials | None:
        """Key of its connection; None if NATS requires none."""
        return self._bus.key

    def of(self, tenant: str | None, *, patience_s: float | None = None) -> "Door":
        """A door on the same connection, for another tenant's data, or with another patience in seconds."""
        return Door(self._bus, self._shown, tenant, patience_s=self._patience_s if patience_s is None else patience_s)

    async def ask(self, verb: str, request: Message, answer: type[M], *, tenant: str | None = None) -> M:
        """Ask the scheduler a question; returns its answer. `tenant`: overrides the door's own.

        Raises: UnknownHere; ClientError if the request is wrong or not permitted; NoAnswer.
        """
        subject = streams.ask(tenant or self.tenant, verb)
        began, attempt = time.monotonic(), 0
        while True:
            found = await self._attempt(subject, request)
            if isinstance(found, Delivery):
                if found.headers.get(KIND_HEADER) != AskRefused.kind:
                    return found.read(answer)
                refused = found.read(AskRefused)
                if refused.code == "unknown":
                    raise UnknownHere(refused.reason)
                if refused.code == "invalid":
                    raise WrongQuestion(verb, refused.reason)
                found = f"the scheduler at {self._shown} does not answer: {refused.reason}"
            if time.monotonic() - began > self._patience_s:
                raise NoAnswer(found)
            attempt += 1
            await asyncio.sleep(PAUSE.pause_s(attempt))

    async def _attempt(self, subject: str, request: Message) -> Delivery | str:
        """Send the question once; returns the answer, or the reason why there is none."""
        if not self._bus.is_connected:  # or the request would wait for the full answer timeout
            return f"NATS at {self._shown} does not answer"
        try:
            return await self._bus.requests.ask(subject, request, timeout_s=ANSWER_S)
        except NoResponder:
            return f"no scheduler answers at {self._shown}; is the stack running? `marlaas status` and the scheduler's log say more"
        except Unavailable as error:
            return f"NATS at {self._shown} does not answer: {error}"
        except Forbidden as error:
            raise NotPermitted(f"NATS at {self._shown} forbids this: {error}") from None

    async def publish(self, out: Outgoing) -> None:
        """Publish a job; its subject names the key of this connection, if it has one.

        Raises: ClientError if it is not permitted, or the maximum number of jobs is waiting; Unavailable if NATS did not store it; Reject
        if it is too large.
        """
        if self.key is not None:
            out = replace(out, subject=streams.sent_by(out.subject, self.key.public))
        try:
            await self._bus.unless_refused(out.subject, self._bus.publish(out))
        except Forbidden as error:
            raise NotPermitted(f"NATS at {self._shown} forbids this: {error}") from None
        except StreamFull:
            raise TooManyJobs("the deployment has as many jobs waiting as it can store; send this one again later") from None
        except QueueFull:
            _, verb, tenant, *_ = out.subject.split(".")
            most = f"{streams.MAX_WAITING_JOBS} '{verb}' of one key, {streams.MAX_OWN_JOBS} of all"
            raise TooManyJobs(f"tenant '{tenant}' has as many jobs waiting as may: {most}; send this one again later") from None

    async def next_event(self, live: Listening, timeout_s: float) -> Event | None:
        """The next event. None after `timeout_s` without one, and for an invalid message, which any client may publish on a server without
        keys.

        Raises: NoAnswer if the connection is closed.
        """
        try:
            delivery = await live.next(timeout_s)
            return delivery.read(Event) if delivery is not None else None
        except Reject:
            return None
        except Unavailable as error:
            raise NoAnswer(f"the connection to NATS at {self._shown} has ended: {error}") from None

    @asynccontextmanager
    async def listening(self, tenant: str | None, task: str | None) -> AsyncGenerator[Listening]:
        """Listen to live events of a tenant (None: all) and task (None: all). Raises: ClientError if that is not permitted; NoAnswer."""
        async with AsyncExitStack() as entered:
            try:
                subject = f"events.{tenant or '*'}.{task or '>'}"
                live = await entered.enter_async_context(self._bus.requests.listening(subject))
            except Forbidden as error:
                raise NotPermitted(f"NATS at {self._shown} forbids this: {error}") from None
            except Unavailable as error:
                raise NoAnswer(f"NATS at {self._shown} does not answer: {error}") from None
            yield live


RECHECK_S = 5.0
"""Seconds without an event after which a client asks for events that may have been lost."""
REPEATED_TIMEOUT_S = 3.0
"""Seconds to wait for a rejection when a task is resubmitted under its id."""


async def answer_to(
    door: AnyDoor,
    out: Outgoing,
    tenant: str,
    task: str,
    is_answer: Callable[[Event], bool],
    timeout_s: float,
    *,
    first: Sequence[Outgoing] = (),
) -> Event:
    """Publish the job `out`, and wait for its answer: an event of `task` ("none" for jobs about no task) for which `is_answer` is true.
    `first`: jobs to publish before `out`; the answer may come after any of them. Raises: NoAnswer; ClientError.
    """
    try:
        async with asyncio.timeout(timeout_s), door.listening(tenant, task) as live:
            before = await door.last_event(task, tenant=tenant)
            for job in (*first, out):
                await door.publish(job)
            while True:
                event = await door.next_event(live, RECHECK_S)
                if event is not None and (event.number or before + 1) > before and is_answer(event):
                    return event
                if event is None:
                    with suppress(NoAnswer):
                        async for stored in door.events_after(task, before, tenant=tenant):
                            if is_answer(stored):
                                return stored
    except (TimeoutError, Retry):
        pass
    raise NoAnswer(f"the scheduler does not answer {out.subject} within {timeout_s:.0f} s; it is done later if NATS took it")


async def answer_to_request(door: AnyDoor, verb: str, tenant: str | None, job: Message, request: str, timeout_s: float) -> Event:
    """Publish a job about no task and wait for its answer, which repeats the job's id, `request`. Raises: NoAnswer; ClientError."""
    out = Outgoing(streams.job(verb, tenant), job, f"{verb}:{request}")
    whose = tenant or streams.EVERY_TENANT
    return await answer_to(door, out, whose, "none", lambda event: event.data.get("request") == request, timeout_s)


async def result_of(door: AnyDoor, verb: str, tenant: str | None, job: Message, request: str, timeout_s: float) -> dict[str, JsonValue]:
    """Publish a job about no task; returns the data of its answer, without `request`. Raises: as `require_accepted`; NoAnswer."""
    answer = await answer_to_request(door, verb, tenant, job, request, timeout_s)
    require_accepted(answer)
    return {name: value for name, value in answer.data.items() if name != "request"}


REFUSALS: dict[object, type[ClientError]] = {"unknown": UnknownNamed, "changed": Changed, "invalid": RefusedChange, "busy": TooManyJobs}
"""Error of each `code` of a refusal."""


def require_accepted(answer: Event) -> None:
    """Raises: if `answer` is a refusal, the error of its `code`, with the reasons; ClientError without a code."""
    if "reasons" in answer.data:
        raise REFUSALS.get(answer.data.get("code"), ClientError)("; ".join(rejection_reasons(answer)))


async def answer_to_submission(door: AnyDoor, out: Outgoing, tenant: str, task: str, *, is_repeated: bool, stored: asyncio.Event) -> Event:
    """Publish a submission; returns the event that answers it, `accepted` or `rejected`. `is_repeated`: the id may have been submitted
    before; the scheduler answers a submission only once, so an earlier answer counts. `stored`: set once NATS has stored the job.

    Raises: NoAnswer; ClientError; Unavailable.
    """
    async with door.listening(tenant, task) as live:
        before = 0
        if is_repeated:
            with suppress(NoAnswer):  # NATS accepts jobs while the scheduler is unavailable
                before = await door.last_event(task, tenant=tenant)
        await door.publish(out)
        stored.set()
        began, recheck_s = time.monotonic(), REPEATED_TIMEOUT_S if before else RECHECK_S
        while True:
            event = await door.next_event(live, recheck_s)
            if event is not None and event.event in ("accepted", "rejected") and (event.number or before + 1) > before:
                return event
            if time.monotonic() - began >= recheck_s:
                began = time.monotonic()
                with suppress(NoAnswer):
                    answers = [one async for one in door.events_after(task, 0, tenant=tenant) if one.event in ("accepted", "rejected")]
                    if answers:
                        return answers[-1]
