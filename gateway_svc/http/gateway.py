"""Gateway: dependencies of all routes, the caller of a request, and the drain of requests in flight."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from common.bus import Bus
from common.client_api.errors import RULE, is_name
from common.messages import SamplesAnswer, TokenTexts
from common.messages.tenancy.access import Role
from common.resilience.event_loop import is_set_within
from common.runtime.health import Health
from common.spec import Name
from gateway_svc.access import Access, Caller
from gateway_svc.limits.account import Standing
from gateway_svc.limits.limiter import Limiter
from gateway_svc.limits.window import Rate
from gateway_svc.openai.models import BaseModels
from gateway_svc.openai.sampling.choices import Sampler
from gateway_svc.problems import FieldError, Problem, forbidden, invalid, not_found, roles_of_job, roles_of_question
from gateway_svc.samples import all_ids
from gateway_svc.serving.texts import Texts
from gateway_svc.settings import GatewaySettings
from gateway_svc.web.session import Sessions

LAST_S = 2.0
"""Seconds at the end of the drain reserved for sending the last error events."""
BEARER = HTTPBearer(auto_error=False, scheme_name="key", description="A key, `mk-…`; not needed on a server without keys.")
READING = ("GET", "HEAD", "OPTIONS")
ASKS = "/v1/ask/"
"""Path prefix of requests that only read, although their method is POST."""
PATIENCE_S = 4.0
"""Seconds for which a question is retried while no scheduler answers; after that the client has to retry."""
T = TypeVar("T")


class Drain:
    """Counts requests in flight, and ends them at shutdown.

    When `began` is set, new requests are refused, and streams end that a client can resume at another replica. When `overdue` is set,
    all other requests end with an error.
    """

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.overdue = asyncio.Event()
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Generator[None]:
        """Count a request as in flight inside the block."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def finish(self, drain_s: float) -> None:
        """Wait until no request is in flight, for at most `drain_s` seconds."""
        self.began.set()
        last_s = min(LAST_S, drain_s / 2)
        if not await is_set_within(self._idle, drain_s - last_s):
            self.overdue.set()
            await is_set_within(self._idle, last_s)


@dataclass(frozen=True)
class Gateway:
    """Dependencies of all routes; `gateway_of` returns them for a request."""

    settings: GatewaySettings
    bus: Bus
    """The gateway's own connection; requests of users go through `Caller.door`."""
    access: Access
    health: Health
    sampler: Sampler
    texts: Texts | None = None
    """Texts of tokens; None: tokens are shown as ids."""
    bases: BaseModels | None = None
    """Cache of base models; None: the scheduler is asked for each name."""
    drain: Drain = field(default_factory=Drain)

    @cached_property
    def limiter(self) -> Limiter:
        """Rate limiter; its `run` must be running."""
        return Limiter(self.bus, self.settings)

    @cached_property
    def sessions(self) -> Sessions:
        """Sessions of browsers. Without a configured secret they are encrypted with the gateway's NATS key, which all replicas share."""
        creds = self.settings.nats_creds
        return Sessions(self.settings.session_secret or (creds.read_text() if creds is not None else None))


def gateway_of(request: Request) -> Gateway:
    found = request.app.state.gateway
    assert isinstance(found, Gateway)
    return found


async def entered(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
) -> AsyncGenerator[Caller]:
    """Yield the sender of the request until it is answered. Raises: Unauthorized; Unavailable."""
    bearer = credentials.credentials if credentials is not None else None
    async with gateway_of(request).access.entered(bearer) as caller:
        yield replace(caller, door=caller.door.of(caller.tenant, patience_s=PATIENCE_S))


async def token_texts(gateway: Gateway, answer: SamplesAnswer) -> TokenTexts | None:
    """Concatenated texts of all tokens of an answer; None if no replica provides them."""
    if gateway.texts is None or answer.samples is None:
        return None
    return await gateway.texts.of(answer.samples.pool, answer.task, all_ids(answer))


Sender = Annotated[Caller, Depends(entered)]
"""The sender, as authenticated by its key."""


async def acting(
    request: Request, sender: Sender, tenant: Annotated[Name | None, Query(description="Whose data it is about; for admins only.")] = None
) -> Caller:
    """The sender; if an admin names a tenant, the sender acts for that tenant. The request counts against the tenant's limits.

    Raises: Problem if another role names a tenant, or a limit is reached.
    """
    caller = sender
    if tenant is not None and tenant != sender.tenant:
        if sender.role != "admin":
            raise forbidden(["admin"], f"?tenant= names another tenant than the key's, '{sender.tenant}'")
        caller = replace(sender, door=sender.door.of(tenant), tenant=tenant)
    await count_request(request, caller)
    return caller


async def count_request(request: Request, caller: Caller) -> None:
    """Count the request against the limits of the caller's tenant, if it has one. Raises: Problem if a limit is reached."""
    if caller.tenant is not None:
        limiter = gateway_of(request).limiter
        is_read = request.method in READING or request.url.path.startswith(ASKS)
        await limiter.count_request(caller, caller.tenant, lambda found: note_standings(request, found), reads=is_read)


Acting = Annotated[Caller, Depends(acting)]
"""The sender; an admin acts for the tenant named in the URL, if any."""


def note_standings(request: Request, found: Mapping[Rate, Standing]) -> None:
    """Store the state of rate limits for the headers of the answer."""
    request.state.rates = {**getattr(request.state, "rates", {}), **found}


def check_job(caller: Caller, verb: str) -> None:
    """Raises: Problem, with the permitted roles, if the caller's role may not send this job. NATS would refuse the job too."""
    _check_role(caller, roles_of_job(verb))


def check_question(caller: Caller, verb: str) -> None:
    """Raises: Problem, with the permitted roles, if the caller's role may not ask this question."""
    _check_role(caller, roles_of_question(verb))


def _check_role(caller: Caller, permitted: list[Role]) -> None:
    if caller.role not in permitted:
        raise forbidden(permitted)


def tenant_of(caller: Caller) -> str:
    """Tenant that a new object belongs to. Raises: Problem if an admin named none."""
    if caller.tenant is None:
        raise Problem(400, "Invalid request", "name the tenant, with ?tenant=NAME", "tenant_required")
    return caller.tenant


def check_name(name: str, *, is_new: bool = False) -> None:
    """Raises: Problem for an invalid name: 404, or 400 if `is_new`."""
    if not is_name(name):
        raise invalid(FieldError("name", RULE)) if is_new else not_found()


def only_one(caller: Caller, found: Sequence[T]) -> T:
    """The only element of `found`. Raises: Problem if there is none, or several tenants have one and an admin named none."""
    if not found:
        raise not_found()
    if len(found) > 1:
        tenant_of(caller)
    return found[0]
