"""Files of rows for fine-tuning, and the replica that serves them."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.types import FileObject

from common import streams
from common.bus import Slots
from common.messages import FILE_FAMILY, ReplicaReport
from common.runtime.service import report_replica
from tests.support.gateway.deltas import Source
from tests.support.graders import CHECK
from tests.support.scheduler.stages import World
from tests.support.waiting import at_work

NOTHING = Source(lambda _: None)


def rows(number: int) -> bytes:
    made = ({"messages": [{"role": "user", "content": f"Say {n}."}], "answer": str(n)} for n in range(number))
    return b"".join(json.dumps(row).encode() + b"\n" for row in made)


TRAIN, HELD_OUT = rows(12), rows(5)


def by(grader: dict[str, Any] = CHECK, **hyperparameters: Any) -> Any:
    return {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": hyperparameters}}


async def put(client: AsyncOpenAI, data: bytes = TRAIN, name: str = "rows.jsonl") -> FileObject:
    return await client.files.create(file=(name, data), purpose="fine-tune")


@asynccontextmanager
async def serving_files(world: World, stages: Any) -> AsyncGenerator[None]:
    """A replica of the environment service that serves files, until the block ends."""
    report = ReplicaReport(replica="files", service="env", families=[FILE_FAMILY], environments=[])
    async with (
        at_work(report_replica(world.bus, lambda: report)),
        at_work(world.bus.consume(streams.env_checks(FILE_FAMILY), stages.check, Slots(8))),
        at_work(world.bus.consume(streams.env_opens(FILE_FAMILY), stages.open, Slots(8))),
    ):
        yield
