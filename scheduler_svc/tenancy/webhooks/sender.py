"""Sends what waits to webhooks, until it is delivered or given up.

Rows of PostgreSQL are the queue: a replica takes a webhook for a minute, sends the message that is due, and records the outcome. A
replica that dies meanwhile has sent it or not; another sends it again, with the same id.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from common.errors import Retry
from common.resilience.backoff import jittered
from common.resilience.event_loop import TaskSet
from scheduler_svc.base.database import Database
from scheduler_svc.base.metrics import WEBHOOKS
from scheduler_svc.base.queries import webhook_deliveries as webhooks
from scheduler_svc.base.queries.webhook_deliveries import Due
from scheduler_svc.tenancy.webhooks.post import Failed, Post
from scheduler_svc.tenancy.webhooks.sealing import Sealed, unseal
from scheduler_svc.tenancy.webhooks.signing import signature_headers

PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21_600.0, 43_200.0, 86_400.0)
"""Pause after each failed attempt; after the one that follows the last pause, two days after the first, the message is given up."""
AT_ONCE = 32
"""Maximum messages that a replica sends concurrently, each to another webhook."""
LOOK_EVERY_S = 1.0
GONE = 410
"""Status of a receiver that wants nothing more: the message is given up immediately."""

log = structlog.get_logger()


class WebhookSender:
    """Every replica may run one."""

    def __init__(
        self,
        database: Database,
        post: Post,
        sealing_key: bytes,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
        look_every_s: float = LOOK_EVERY_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._post = post
        self._sealing_key = sealing_key
        self._pauses_s = pauses_s
        self._look_every_s = look_every_s
        self._now_s = now_s
        self._sending = TaskSet()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as runners:
            while True:
                due = await self._take()
                for each in due:
                    self._sending.hold(runners.create_task(self._send_quietly(each)))
                if self._sending and len(due) > 0:
                    await asyncio.wait(self._sending, timeout=self._look_every_s, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(self._look_every_s)

    async def _take(self) -> list[Due]:
        most = AT_ONCE - len(self._sending)
        if most <= 0:
            return []
        try:
            async with self._database.statements() as connection:
                return await webhooks.take(connection, most=most)
        except Retry as error:
            log.warning("webhooks_postponed", reason=str(error))
            return []

    async def _send_quietly(self, due: Due) -> None:
        try:
            await self.send(due)
        except Retry as error:  # sent or not, it is sent again with the same id
            log.warning("webhook_not_recorded", message=due.message, reason=str(error))
        except Exception:  # one bad row must not end the others
            log.exception("webhook_not_sent", message=due.message)

    async def send(self, due: Due) -> None:
        """One attempt, and its record. Raises: Retry when PostgreSQL is unavailable."""
        status, reason = await self._attempt(due)
        is_last = status == GONE or due.attempts >= len(self._pauses_s)
        state = "delivered" if not reason else "given_up" if is_last else "waiting"
        pause_s = jittered(self._pauses_s[due.attempts]) if state == "waiting" else 0.0
        async with self._database.transaction() as tx:
            await webhooks.record(tx.connection, due, status, reason, state=state, pause_s=pause_s)
        WEBHOOKS.labels("failed" if state == "waiting" else state).inc()
        log.info("webhook_sent", tenant=due.tenant, message=due.message, state=state, status=status, attempt=due.attempts + 1)

    async def _attempt(self, due: Due) -> tuple[int | None, str]:
        """Status of the answer, and why the attempt failed; empty where it did not."""
        body = due.body.encode()
        try:
            key = unseal(self._sealing_key, (due.tenant, due.webhook), due.sealed)
            status = await self._post.send(due.url, signature_headers(key, due.message, self._now_s(), body), body)
        except Sealed:
            return None, "the secret was sealed by another key of the deployment; set the webhook with a new secret"
        except Failed as error:
            return None, str(error)
        if 200 <= status < 300:
            return status, ""
        return status, "redirections are not followed" if 300 <= status < 400 else f"the receiver answers {status}"
