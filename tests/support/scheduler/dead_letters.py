"""Dead letters, published and recorded."""

from common import streams
from common.bus import Bus, Outgoing
from common.messages import (
    DeadLetter,
)
from tests.support.scheduler.stages import World


async def dead_letter(bus: Bus, stage: str, task: str, out: Outgoing, *, sequence: int = 0, body: bytes | None = None) -> int:
    """Publish a dead letter about `out`; returns its number."""
    letter = DeadLetter(
        stage=stage,
        subject=out.subject,
        reason="disk full",
        attempts=5,
        headers={streams.KIND_HEADER: out.message.kind, **out.headers},
        body=out.message.encode() if body is None else body,
        sequence=sequence,
    )
    return await bus.publish(Outgoing(streams.failed(stage, task), letter, f"letter:{stage}:{out.message_id}"))


async def recorded(world: World, letters: int) -> None:
    """Wait until PostgreSQL has so many dead letters."""
    await world.rows_become("SELECT count(*) FROM dead_letters", [(letters,)])
