"""Texts of tokens, requested from a serving replica of the pool: only replicas have the tokenizer."""

import asyncio
import secrets

import structlog

from common import streams
from common.bus import Bus, Outgoing
from common.errors import MarlaasError
from common.messages import ReplicaReport, Served, TextsRequest, TokenTexts
from common.messages.serving import MAX_TEXT_TOKENS

WAIT_S = 3.0
"""Seconds to wait for texts, after which tokens are shown as ids."""
MAX_CONCURRENT = 4
"""Maximum concurrent requests of one gateway; they compete with chats for replicas."""
ID_BYTES = 4

log = structlog.get_logger()


class Texts:
    def __init__(self, bus: Bus, gateway: str) -> None:
        self._bus = bus
        self._gateway = gateway
        self._waiting: dict[str, asyncio.Future[TokenTexts]] = {}
        self._places = asyncio.Semaphore(MAX_CONCURRENT)

    async def of(self, pool: str, task: str, ids: bytes) -> TokenTexts | None:
        """Texts of tokens, (T,) int32; None if no live replica of the pool serves, or none answers."""
        if not ids or len(ids) > ID_BYTES * MAX_TEXT_TOKENS:
            return None
        try:
            async with asyncio.timeout(WAIT_S), self._places:
                if not await self._is_served(pool):
                    return None
                return await self._asked(pool, task, ids)
        except (TimeoutError, MarlaasError) as error:
            log.info("texts_missing", pool=pool, task=task, reason=str(error) or "no answer in time")
            return None

    def take(self, message: Served) -> None:
        for texts in message.texts:
            if (waiting := self._waiting.get(texts.request)) is not None and not waiting.done():
                waiting.set_result(texts)

    async def _is_served(self, pool: str) -> bool:
        reports = await self._bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        return any(report.service == "rollout" and report.pool == pool and report.serves for report in reports)

    async def _asked(self, pool: str, task: str, ids: bytes) -> TokenTexts | None:
        request = secrets.token_hex(12)
        waiting = self._waiting[request] = asyncio.get_running_loop().create_future()
        message = TextsRequest(request=request, gateway=self._gateway, pool=pool, ids=ids, answer_by_s=self._bus.clock.now_s() + WAIT_S)
        try:
            await self._bus.publish(Outgoing(streams.serve(pool, task, request), message, f"texts:{self._gateway}:{request}"))
            found = await waiting
        finally:
            del self._waiting[request]
        return found if _counts(found) == {len(ids) // ID_BYTES} else None


def _counts(texts: TokenTexts) -> set[int]:
    return {len(texts.texts), len(texts.control)}
