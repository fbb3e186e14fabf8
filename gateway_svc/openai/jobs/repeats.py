"""Whether a request is the client's repetition of one whose answer it lost: OpenAI's client repeats without a key, and counts."""

import time

from common.client_api.asking import Door
from common.messages import AskTask, AskTasks, SpecAnswer, SubmitTask, TasksAnswer, TaskStatus

COUNT_HEADER = "x-stainless-retry-count"
"""Header in which the client says how often it has sent the request before."""
WINDOW_S = 120.0
"""Age up to which an equal task counts as submitted by the attempt before."""
LATEST = 20
"""Tasks of the tenant that are compared."""


async def submitted_before(door: Door, job: SubmitTask) -> TaskStatus | None:
    """The newest task of the tenant that was just submitted with the same task file. Raises: as `Door.ask`."""
    asked = AskTasks(sort="created", descending=True, most=LATEST)
    for status in (await door.ask("tasks", asked, TasksAnswer, tenant=job.tenant)).tasks:
        if time.time() - status.submitted_s > WINDOW_S:
            return None
        found = await door.ask("spec", AskTask(task=status.task), SpecAnswer, tenant=job.tenant)
        if found.submission == job.digest:
            return status
    return None
