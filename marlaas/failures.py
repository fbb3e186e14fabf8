"""Dead letters, as users read them. `marlaas.client` re-exports `Failure`."""

from dataclasses import dataclass

from common import streams
from common.bus import Bus, Delivery
from common.errors import Reject
from common.messages import DeadLetter
from marlaas.errors import ClientError


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

    @property
    def sender(self) -> str:
        """The tenant of a job that could not be taken. Raises: ClientError when the message was no job."""
        parts = self.subject.split(".", 2)
        if parts[0] != "jobs" or len(parts) < 3:
            raise ClientError(f"letter {self.letter} is about no task and no job: '{self.subject}'")
        return parts[2]


async def read_failure(bus: Bus, letter: int) -> Failure:
    """Raises: ClientError when there is no such letter."""
    try:
        found = failure_of(await bus.streams.read(streams.FAILED, letter))
    except LookupError:
        found = None
    if found is None:
        raise ClientError(f"there is no dead letter {letter}; `marlaas failures` lists those there are")
    return found


def failure_of(delivery: Delivery) -> Failure | None:
    """None when it is no dead letter: any client may publish there."""
    try:
        letter = delivery.read(DeadLetter)
    except Reject:
        return None
    task = streams.token(delivery.subject, 2)
    return Failure(delivery.sequence, None if task == "none" else task, letter.stage, letter.subject, letter.reason, letter.attempts)
