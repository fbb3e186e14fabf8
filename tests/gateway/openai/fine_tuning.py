"""Fine-tuning jobs of OpenAI's client."""

import asyncio
from typing import Any

from openai import AsyncOpenAI
from openai.types.fine_tuning import FineTuningJob

SMALL: dict[str, Any] = {"steps": 3, "algorithm": {"group_size": 2, "groups_per_step": 2}}


def strictly(job: FineTuningJob) -> FineTuningJob:
    """By the client's own type, without its leniency."""
    return FineTuningJob.model_validate_json(job.model_dump_json(), strict=True)


async def ended(client: AsyncOpenAI, job: str) -> FineTuningJob:
    async with asyncio.timeout(240):
        while (found := await client.fine_tuning.jobs.retrieve(job)).status not in ("succeeded", "failed", "cancelled"):
            await asyncio.sleep(0.1)
    return found
