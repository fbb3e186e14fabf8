"""Dead letters, as users read them."""

from dataclasses import dataclass

from common.client_api.errors import ClientError
from common.client_api.pages import pages
from common.client_api.protocol import AnyDoor
from common.messages import AskFailures, FailedMessage, FailuresAnswer


@dataclass(frozen=True)
class Failure:
    """One dead letter: a message that was given up."""

    letter: int
    """Number of the letter, for `resend`."""
    task: str | None
    """None for a job that could not be taken."""
    stage: str
    subject: str
    reason: str
    attempts: int
    tenant: str | None = None
    """None where the letter names neither a task that there is nor a job."""

    @property
    def sender(self) -> str:
        """The tenant of the task, or of a job that could not be taken. Raises: ClientError when it is neither."""
        if self.tenant is None:
            raise ClientError(f"letter {self.letter} is about no task and no job: '{self.subject}'")
        return self.tenant


async def read_failures(door: AnyDoor, task: str | None) -> list[Failure]:
    """Dead letters of one task, or of all, oldest first. Raises: ClientError; NoAnswer."""
    found = pages(door, "failures", AskFailures(task=task), FailuresAnswer, _behind_last)
    return [_failure(one) async for page in found for one in page.failures]


async def read_failure(door: AnyDoor, letter: int) -> Failure:
    """Raises: ClientError when there is no such letter; NoAnswer."""
    page = await door.ask("failures", AskFailures(after=letter - 1), FailuresAnswer) if letter > 0 else None
    if page is None or not page.failures or page.failures[0].letter != letter:
        raise ClientError(f"there is no dead letter {letter}; `marlaas failures` lists those there are")
    return _failure(page.failures[0])


def _behind_last(page: FailuresAnswer) -> dict[str, object] | None:
    return {"after": page.failures[-1].letter} if page.has_more and page.failures else None


def _failure(one: FailedMessage) -> Failure:
    return Failure(one.letter, one.task, one.stage, one.subject, one.reason, one.attempts, one.tenant)
