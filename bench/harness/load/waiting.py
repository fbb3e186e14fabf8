"""An environment that waits for the time in each reply, like a slow tool call or grading.

`WaitingEnvironment` with option `turns`; a reply is a number of milliseconds. The reward is a number that differs between replies.
"""

import asyncio

from env_svc.contract import ChatMessage, Continue, Environment, Finish, Opening, Reply, Turn


class WaitingEnvironment(Environment[int]):
    """The state is the number of past turns."""

    def __init__(self, turns: int = 1) -> None:
        self._turns = turns

    async def open(self, index: int, seed: int) -> Opening[int]:
        del seed
        return Opening([ChatMessage(role="user", content=f"Prompt {index}.")], state=0)

    async def step(self, state: int, reply: Reply) -> Turn[int]:
        wait_ms = int(reply.text)
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
        if state + 1 >= self._turns:
            return Finish((wait_ms * 31 + len(reply.text)) % 17 / 16)
        return Continue([ChatMessage(role="user", content="Go on.")], state + 1)
