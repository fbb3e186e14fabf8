"""HttpJobs: jobs about tasks over HTTP. Each may be sent again when its answer is lost: none has its effect twice."""

import asyncio
import time

from pydantic import JsonValue

from common.door.asking import UnknownHere
from common.door.errors import ClientError, NoAnswer, TaskRejected, Unanswered, WrongState, check_id, rejection_reasons
from common.door.protocol import Verb
from common.door.training.control import check_live
from common.door.training.submission import REASONS_S, given_values, is_readable
from common.messages import AdapterRef, AskTask, Event, StatusAnswer, TaskStatus
from common.spec import TaskSpec, new_task_id
from marlaas.over_http.connection import Params
from marlaas.over_http.door import HttpDoor
from marlaas.over_http.downloading import downloaded
from marlaas.over_http.questions import read_status
from marlaas.over_http.refusals import Conflict, Invalid

LOOK_S = 0.5
"""Interval of looks at a submission that is not answered yet."""
DELETION_S = 90.0
"""Maximum time for one answer about a deletion: more than a gateway waits for it."""
DRY_RUN: Params = [("dry_run", "true")]
AIMS: dict[Verb, str] = {"cancel": "cancelled", "pause": "paused", "resume": "running"}


class HttpJobs:
    """`Jobs` of a gateway."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._connection = door.connection

    async def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None, *, timeout_s: float) -> Event:
        """See `Jobs.submit`. The id is the client's, so that a submission whose answer was lost is repeated as the same task."""
        if task is not None:
            check_id(task)
        given, tenant, name = await self._checked(spec)
        task = task or new_task_id(name, tenant)
        is_stored = False
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._connection.request("PUT", f"/v1/tasks/{task}", body=given, patience_s=timeout_s)
                is_stored = True
                state = read_status(answer.content).state if answer.status_code != 202 else "submitted"
                return await self._answer(task, tenant, state)
        except TimeoutError:
            raise (Unanswered(task, timeout_s) if is_stored else self._not_taken(task, timeout_s)) from None
        except Invalid as error:
            raise TaskRejected(task, error.reasons) from None
        except Conflict as error:
            raise TaskRejected(task, [str(error)]) from None

    async def _checked(self, spec: TaskSpec | dict[str, JsonValue]) -> tuple[dict[str, JsonValue], str, str]:
        """As `given_values`. Raises: TaskRejected; its reasons are also those that only the scheduler knows, where one answers."""
        try:
            return given_values(spec)
        except TaskRejected as error:
            if isinstance(spec, dict) and is_readable(spec, error):
                try:
                    await self._connection.request("POST", "/v1/tasks", DRY_RUN, body=spec, answer_s=REASONS_S, patience_s=0)
                except Invalid as refused:
                    raise TaskRejected(error.task, refused.reasons) from None
                except ClientError:
                    pass
            raise

    def _not_taken(self, task: str, timeout_s: float) -> NoAnswer:
        said = f"the scheduler does not answer, or the gateway at {self._connection.shown}"
        return NoAnswer(f"{said}: task {task} was not taken within {timeout_s:.0f} s; submit it again with the same id")

    async def _answer(self, task: str, tenant: str, state: str) -> Event:
        """The event `accepted`, once there is one. Raises: TaskRejected."""
        while True:
            answers = await self._answers(task, tenant)
            if answers and state != "submitted":  # a refusal of another submission may follow
                answers = [event for event in answers if event.event == "accepted"] or answers
            if answers and answers[-1].event == "rejected":
                raise TaskRejected(task, rejection_reasons(answers[-1]))
            if answers:
                return answers[0]
            await asyncio.sleep(LOOK_S)

    async def _answers(self, task: str, tenant: str) -> list[Event]:
        try:
            stored = [event async for event in self._door.events_after(task, 0, tenant=tenant)]
        except (UnknownHere, NoAnswer):
            return []
        return [event for event in stored if event.event in ("accepted", "rejected")]

    async def preview(self, spec: TaskSpec | dict[str, JsonValue], *, timeout_s: float) -> Event:
        """See `Jobs.preview`."""
        given, tenant, name = await self._checked(spec)
        try:
            answer = await self._connection.request("POST", "/v1/tasks", DRY_RUN, body=given, answer_s=timeout_s)
        except Invalid as error:
            raise TaskRejected(name, error.reasons) from None
        return Event(tenant=tenant, task="none", event="previewed", at_s=time.time(), data=answer.json())

    async def control(self, verb: Verb, status: TaskStatus, reason: str) -> None:
        """See `Jobs.control`."""
        check_live(verb, status)
        params: Params = [*self._door.params(), *([("reason", reason)] if reason else [])]
        try:
            await self._connection.request("POST", f"/v1/tasks/{status.task}/{verb}", params)
        except WrongState:  # also when an attempt had its effect, and its answer was lost
            found = (await self._door.ask("status", AskTask(task=status.task), StatusAnswer, tenant=status.tenant)).status
            if found.state != AIMS[verb]:
                raise

    async def delete(self, status: TaskStatus, *, timeout_s: float) -> int:
        """See `Jobs.delete`."""
        began = time.monotonic()
        while True:
            try:
                path = f"/v1/tasks/{status.task}"
                answer = await self._connection.request("DELETE", path, self._door.params(), answer_s=DELETION_S, patience_s=0)
                return int(answer.json()["freed_bytes"])
            except (NoAnswer, UnknownHere) as error:  # it is being deleted, or was by an attempt whose answer was lost
                freed = await self._freed(status)
                if freed is not None:
                    return freed
                if isinstance(error, UnknownHere) or time.monotonic() - began > timeout_s:
                    raise
                await asyncio.sleep(LOOK_S)

    async def _freed(self, status: TaskStatus) -> int | None:
        """Bytes, as the event of the deletion says; None before it."""
        try:
            async for event in self._door.events_after(status.task, 0, tenant=status.tenant):
                if event.event == "deleted":
                    freed = event.data.get("bytes")
                    return freed if isinstance(freed, int) else 0
        except (UnknownHere, NoAnswer):
            pass
        return None

    async def resend(self, letter: int, *, timeout_s: float) -> None:
        """See `Jobs.resend`."""
        absent = ClientError(f"there is no dead letter {letter}; `marlaas failures` lists those there are")
        if letter < 1:
            raise absent
        try:
            path = f"/v1/failures/{letter}/resend"
            await self._connection.request("POST", path, self._door.params(), answer_s=timeout_s + 15)
        except UnknownHere:
            raise absent from None

    async def blob(self, task: str, adapter: AdapterRef) -> bytes:
        """See `Jobs.blob`. A download that breaks off goes on where it ended."""
        path = f"/v1/tasks/{task}/versions/{adapter.version}/adapter.tar"
        parts = downloaded(self._connection, path, self._door.params(), adapter.blob.size_bytes, adapter.blob.sha256)
        return b"".join([part async for part in parts])
