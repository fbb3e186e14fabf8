"""Lifetimes of services' processes: how each started, and how the previous one ended."""

import re
from typing import Literal

from pydantic import Field

from common.messages.base import Message, Sentence, Value

FAULTY_AFTER = 3
"""Number of successive deaths with the same cause after which a process is faulty."""
WORKED_S = 60.0
"""Seconds of readiness after which a process is no longer faulty."""
REMEMBERED_S = 3600.0
"""Seconds after a death within which a further death counts as successive, and for which the death is listed."""
NUMBERS = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
LIVES = "*.*"
"""Key pattern of process lives in the bucket."""
TroubleState = Literal["starting", "restarting", "faulty", "gone", "recovered"]


def life_key(service: str, replica: str) -> str:
    return f"{service}.{replica}"


def are_alike(cause: str, other: str) -> bool:
    """Whether two deaths have the same cause, ignoring numbers, ids and times in its text."""
    return NUMBERS.sub("#", cause) == NUMBERS.sub("#", other)


class ProcessLife(Message, kind="process-life.1"):
    """A process of a service, in the key-value bucket `history` under `<service>.<replica>`; the next process of that name replaces it."""

    service: str
    replica: str
    pool: str | None = None
    """None for services that serve every pool."""
    began_s: float
    """Start, in NATS's time, like all times here."""
    ready_s: float | None = None
    """None while it is starting."""
    start_s: float | None = None
    """Seconds of the latest start that became ready, possibly an earlier process's; None before the first."""
    ended: Sentence | None = None
    """None while it lives, and if it ended without a report; empty: it was ordered to end; else the cause of its end."""
    deaths: int = Field(default=0, ge=0)
    """Successive deaths with the same cause, each within REMEMBERED_S of the previous one."""
    died_s: float | None = None
    """Time of the latest of these deaths."""
    cause: Sentence = ""
    """Cause of the latest of these deaths."""

    def dead(self, cause: str, now_s: float) -> "ProcessLife":
        """A copy with one more death, due to `cause`."""
        before = self.deaths if self.died_s is not None and now_s - self.died_s < REMEMBERED_S and are_alike(cause, self.cause) else 0
        return self.model_copy(update={"deaths": before + 1, "died_s": now_s, "cause": cause})


class TroubleOf(Value):
    """A process that is not ready, or that died within the last hour."""

    service: str
    pool: str | None
    replica: str
    """Empty in answers to tenants, as is `cause`."""
    state: TroubleState
    deaths: int
    died_s: float | None
    cause: Sentence = ""
    starts_in_s: float | None = None
    """Expected seconds until it is ready, from its latest start; None if unknown, or if it is ready."""

    @property
    def sentence(self) -> str:
        who = self.replica or self.service
        times = "once" if self.deaths == 1 else f"{self.deaths} times alike"
        because = f": {self.cause}" if self.cause else ""
        expected = f", about {self.starts_in_s:.0f} s" if self.starts_in_s is not None else ""
        match self.state:
            case "faulty":
                return f"{who} is faulty: it died {times}{because}. An operator reads its log, and corrects the cause"
            case "gone":
                return f"{who} is gone without a word, and no process began in its place"
            case "recovered":
                return f"{who} died {times}, and works again{because}"
            case "starting":
                return f"{who} starts{expected}"
            case "restarting":
                return f"{who} restarts{expected}; it died {times}{because}"


def trouble_of(life: ProcessLife, now_s: float, *, is_alive: bool) -> TroubleOf | None:
    """Trouble of a process; None if it works and has not died recently, or was ordered to end. `is_alive`: whether it reports."""
    has_died = life.died_s is not None and now_s - life.died_s < REMEMBERED_S
    is_ready = life.ended is None and life.ready_s is not None
    if life.ended == "" or (is_ready and is_alive and not has_died):
        return None
    state: TroubleState = "restarting" if has_died else "starting"
    if is_ready:
        state = "recovered" if is_alive else "gone"
    if has_died and life.deaths >= FAULTY_AFTER and (life.ready_s is None or not is_ready or now_s - life.ready_s < WORKED_S):
        state = "faulty"
    left_s = None
    if not is_ready and life.start_s is not None:
        left_s = max(1.0, life.start_s - (now_s - life.began_s if life.ended is None else 0.0))
    return TroubleOf(
        service=life.service,
        pool=life.pool,
        replica=life.replica,
        state=state,
        deaths=life.deaths if has_died else 0,
        died_s=life.died_s if has_died else None,
        cause=life.cause if has_died else "",
        starts_in_s=left_s,
    )
