"""Chats beside the tasks, in a pool with latency goals, so that rollouts make room for them while faults happen."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.harness.keys import keys_of
from bench.harness.tenants import admin
from bench.serving.http import CHAT, Answer, ask, session
from marlaas.stack.state_files import Stack
from tests.support.paths import ROOT

GOALS = "[tiny.serving]\nttft_ms = 2000\ntpot_ms = 200\n"
ASKED_EVERY_S = 0.2
ANSWERED_S = 30.0


def pools_with_goals(folder: Path) -> Path:
    """A file of the repository's pools, whose goals an idle engine meets on a busy machine too."""
    pools = (ROOT / "pools.toml").read_text().replace("models/tiny", str(ROOT / "models" / "tiny"))
    assert "[tiny.serving]" in pools
    folder.mkdir(parents=True, exist_ok=True)
    (path := folder / "pools.toml").write_text(pools.replace("[tiny.serving]", GOALS, 1))
    return path


@asynccontextmanager
async def chatting(stack: Stack, tenant: str) -> AsyncIterator[Counter[str]]:
    """Inside the block the base model is asked all the time; yields the number of answers by status, or by the error's code."""
    key, answers = await admin(stack.nats_url, keys_of(stack), [stack.gateway.url]), Counter[str]()

    async def chat() -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
        async with session(key) as http:
            while True:
                found = Answer()
                try:
                    async with asyncio.timeout(ANSWERED_S):
                        await ask(http, stack.gateway.url, CHAT, body, found, tenant=tenant)
                except TimeoutError:
                    found.error = "late"
                answers[found.error or str(found.status)] += 1
                await asyncio.sleep(ASKED_EVERY_S)

    chats = [asyncio.create_task(chat()) for _ in range(2)]
    try:
        yield answers
    finally:
        for each in chats:
            each.cancel()
        await asyncio.gather(*chats, return_exceptions=True)
