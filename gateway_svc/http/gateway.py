"""Gateway: what all routes have in common, the caller of a request, and the drain, in which requests in flight take part."""

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
"""Seconds of the drain's time that are left for the last error events to be sent."""
BEARER = HTTPBearer(auto_error=False, scheme_name="key", description="A key, `mk-…`; not needed on a server without keys.")
READING = ("GET", "HEAD", "OPTIONS")
ASKS = "/v1/ask/"
"""Beginning of paths that read though their method is POST."""
PATIENCE_S = 4.0
"""Seconds over which a question is repeated while no scheduler answers; then the client repeats its request."""
T = TypeVar("T")


class Drain:
    """Counts requests in flight, and ends them.

    `began`: new requests are refused, and streams that a client resumes elsewhere end. `overdue`: all others end with an error.
    """

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.overdue = asyncio.Event()
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Generator[None]:
        """A request in flight."""
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
        if not await self._is_idle_within(drain_s - last_s):
            self.overdue.set()
            await self._is_idle_within(last_s)

    async def _is_idle_within(self, time_s: float) -> bool:
        try:
            async with asyncio.timeout(time_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


@dataclass(frozen=True)
class Gateway:
    """What a route may use; `gateway_of` finds it."""

    settings: GatewaySettings
    bus: Bus
    """The gateway's own connection; everything that a user asks for goes through `Caller.door`."""
    access: Access
    health: Health
    sampler: Sampler
    texts: Texts | None = None
    """None: tokens are shown as ids."""
    bases: BaseModels | None = None
    """None: the scheduler is asked for each name."""
    drain: Drain = field(default_factory=Drain)

    @cached_property
    def limiter(self) -> Limiter:
        """Its `run` must run."""
        return Limiter(self.bus, self.settings)

    @cached_property
    def sessions(self) -> Sessions:
        """Of browsers. Without a secret of its own they are sealed by the gateway's key, which its replicas have in common."""
        creds = self.settings.nats_creds
        return Sessions(self.settings.session_secret or (creds.read_text() if creds is not None else None))


def gateway_of(request: Request) -> Gateway:
    found = request.app.state.gateway
    assert isinstance(found, Gateway)
    return found


async def entered(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
) -> AsyncGenerator[Caller]:
    """The sender of the request, until it is answered. Raises: Unauthorized; Unavailable."""
    bearer = credentials.credentials if credentials is not None else None
    async with gateway_of(request).access.entered(bearer) as caller:
        yield replace(caller, door=caller.door.of(caller.tenant, patience_s=PATIENCE_S))


async def token_texts(gateway: Gateway, answer: SamplesAnswer) -> TokenTexts | None:
    """Texts of all tokens of an answer, one after the other; None where no replica gives them."""
    if gateway.texts is None or answer.samples is None:
        return None
    return await gateway.texts.of(answer.samples.pool, answer.task, all_ids(answer))


Sender = Annotated[Caller, Depends(entered)]
"""The sender, as its key says."""


async def acting(
    request: Request, sender: Sender, tenant: Annotated[Name | None, Query(description="Whose data it is about; for admins only.")] = None
) -> Caller:
    """The sender, or a tenant that an admin names; the request counts for the tenant. Raises: Problem when another names one, and where
    a limit is met."""
    caller = sender
    if tenant is not None and tenant != sender.tenant:
        if sender.role != "admin":
            raise forbidden(["admin"], f"?tenant= names another tenant than the key's, '{sender.tenant}'")
        caller = replace(sender, door=sender.door.of(tenant), tenant=tenant)
    await count_request(request, caller)
    return caller


async def count_request(request: Request, caller: Caller) -> None:
    """Count the request for the tenant that it is about, if any. Raises: Problem where a limit is met."""
    if caller.tenant is not None:
        limiter = gateway_of(request).limiter
        is_read = request.method in READING or request.url.path.startswith(ASKS)
        await limiter.count_request(caller, caller.tenant, lambda found: note_standings(request, found), reads=is_read)


Acting = Annotated[Caller, Depends(acting)]
"""The sender, acting for the tenant that it named, where it is an admin."""


def note_standings(request: Request, found: Mapping[Rate, Standing]) -> None:
    """Where rates stand, for the headers of the answer."""
    request.state.rates = {**getattr(request.state, "rates", {}), **found}


def check_job(caller: Caller, verb: str) -> None:
    """Raises: Problem naming the roles that may send such a job. NATS refuses it too."""
    _check_role(caller, roles_of_job(verb))


def check_question(caller: Caller, verb: str) -> None:
    """Raises: Problem naming the roles that may ask so."""
    _check_role(caller, roles_of_question(verb))


def _check_role(caller: Caller, permitted: list[Role]) -> None:
    if caller.role not in permitted:
        raise forbidden(permitted)


def tenant_of(caller: Caller) -> str:
    """The tenant that a new thing belongs to. Raises: Problem when an admin named none."""
    if caller.tenant is None:
        raise Problem(400, "Invalid request", "name the tenant, with ?tenant=NAME", "tenant_required")
    return caller.tenant


def check_name(name: str, *, is_new: bool = False) -> None:
    """Raises: Problem for what cannot be such a name."""
    if not is_name(name):
        raise invalid(FieldError("name", RULE)) if is_new else not_found()


def only_one(caller: Caller, found: Sequence[T]) -> T:
    """Raises: Problem where there is none, or an admin names no tenant and several have one."""
    if not found:
        raise not_found()
    if len(found) > 1:
        tenant_of(caller)
    return found[0]
