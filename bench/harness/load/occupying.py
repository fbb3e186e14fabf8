"""An environment that occupies a worker process, and keeps a record of how long for whom."""

import time
from pathlib import Path
from typing import ClassVar

from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply


class OccupyingEnvironment(Environment[int]):
    """One turn of `seconds`. `tenant`: written into `record` with each call's end, in Unix seconds, and its seconds."""

    cpu_bound: ClassVar[bool] = True

    def __init__(self, seconds: float, tenant: str, record: str) -> None:
        self._seconds = seconds
        self._tenant = tenant
        self._record = Path(record)

    async def open(self, index: int, seed: int) -> Opening[int]:
        del seed
        return Opening([ChatMessage(role="user", content=f"Prompt {index}.")], state=0)

    async def step(self, state: int, reply: Reply) -> Finish:
        began = time.time()
        time.sleep(self._seconds)  # noqa: ASYNC251  the worker has one call at a time
        with self._record.open("a") as lines:
            lines.write(f"{self._tenant} {time.time()} {time.time() - began}\n")
        return Finish((state + len(reply.text)) % 17 / 16)
