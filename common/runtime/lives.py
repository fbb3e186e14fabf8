"""Lifetimes of this process and of its predecessor, stored in NATS, so that an unordered death is known in every kind of deployment.

begins   the process reads how its predecessor ended; an entry without an end counts as a death too (killed, out of memory, power)
ready    it stores the duration of its start, which is expected of the next start
ends     it stores "" if its end was ordered, else the error that ended it
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from common.bus import Bus
from common.errors import Fatal
from common.messages import ProcessLife
from common.messages.lives import life_key
from common.runtime.health import Health
from common.runtime.settings import Settings
from common.streams import HISTORY_BUCKET

WITHOUT_A_WORD = "it ended without a word: killed, or out of memory, or its machine stopped"
WRITE_TIMEOUT_S = 3.0
MAX_CAUSE_CHARS = 300

T = TypeVar("T")
log = structlog.get_logger()


@asynccontextmanager
async def living(settings: Settings, bus: Bus, health: Health) -> AsyncGenerator[None]:
    """Keep the entry of this process during the block, and record how the block ends. Refusals by NATS do not affect the service."""
    life = _Life(bus, await _begun(settings, bus))
    await life.write()
    noting = asyncio.ensure_future(life.note_ready(health))
    ended = ""
    try:
        yield
    except BaseException as error:
        ended = cause_of(error)
        raise
    finally:
        noting.cancel()
        await asyncio.shield(life.end(ended))


class _Life:
    def __init__(self, bus: Bus, life: ProcessLife) -> None:
        self._bus = bus
        self._life = life

    async def note_ready(self, health: Health) -> None:
        await health.became_ready.wait()
        self._life = self._life.model_copy(update={"ready_s": self._bus.clock.now_s(), "start_s": round(_age_s(), 2)})
        await self.write()

    async def end(self, why: str) -> None:
        died = self._life.dead(why, self._bus.clock.now_s()) if why else self._life
        self._life = died.model_copy(update={"ended": why})
        await self.write()

    async def write(self) -> None:
        key = life_key(self._life.service, self._life.replica)
        await _unless_refused(self._bus.kv.put(HISTORY_BUCKET, key, self._life))


async def _begun(settings: Settings, bus: Bus) -> ProcessLife:
    """Entry for this process's life, with data of the previous one."""
    service, now_s = settings.service.lower(), bus.clock.now_s()
    pool = getattr(settings, "pool", None)  # services of a single pool
    life = ProcessLife(service=service, replica=settings.replica, pool=pool, began_s=now_s - _age_s())
    before = await _unless_refused(bus.kv.get(HISTORY_BUCKET, life_key(service, settings.replica), ProcessLife))
    if before is None:
        return life
    if before.ended is None:
        before = before.dead(settings.predecessor or WITHOUT_A_WORD, now_s)
    kept = {"start_s"} if before.ended == "" else {"start_s", "deaths", "died_s", "cause"}
    return life.model_copy(update=before.model_dump(include=kept))


async def _unless_refused(work: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            return await work
    except Exception as error:  # NATS is unavailable, or refuses: lives are only informative
        log.warning("life_not_kept", error=str(error) or type(error).__name__)
        return None


def cause_of(error: BaseException) -> str:
    """Cause of a process's end, as one line; empty if it was ordered."""
    causes = [one for one in leaves(error) if not isinstance(one, asyncio.CancelledError)]
    if not causes:
        return ""
    fatal = next((one for one in causes if isinstance(one, Fatal)), None)
    words = str(fatal) if fatal is not None else f"{type(causes[0]).__name__}: {causes[0]}"
    return " ".join(words.split())[:MAX_CAUSE_CHARS] or type(causes[0]).__name__


def leaves(error: BaseException) -> list[BaseException]:
    """Flatten a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def _age_s() -> float:
    """Seconds since this process started, imports included."""
    began_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
