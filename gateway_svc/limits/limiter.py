"""Limiter: charges requests to the accounts of their tenant and key, by the tenant's terms."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace

import structlog

from common import streams
from common.bus import Bus
from common.errors import MarlaasError, Unavailable
from common.messages import AskTerms, ServedDelta, TermsAnswer
from gateway_svc.access import Caller
from gateway_svc.limits.account import Account, LimitMet, Standing, StoreUnavailable
from gateway_svc.limits.refusals import NAMES, budget_spent, no_tenant, store_unavailable, too_many
from gateway_svc.limits.window import RATES, Allowed, Amounts, Rate
from gateway_svc.openai.sampling.choices import Choice, Prompt
from gateway_svc.serving.progress import Given
from gateway_svc.settings import GatewaySettings

UPKEEP_S = 0.25
"""Seconds between calls of `Account.upkeep`, which reports changes even if no request arrives."""
CLOSE_S = 2.0
Numbered = tuple[int, ServedDelta]
Noted = Callable[[dict[Rate, Standing]], None]
"""Receives the states of rate limits, for the headers of the answer."""
ASSUMED_REPLY = 512
"""Tokens charged for a reply without a maximum; a longer reply is charged as many again each time it exceeds the charged tokens."""
CHARS_PER_TOKEN = 4
KEPT_S = 2.0
"""Seconds for which terms are cached."""
ANSWER_S = 2.0
"""Maximum seconds to wait for the scheduler's answer about terms; without an answer, the known terms apply."""
MAX_KNOWN = 10_000
log = structlog.get_logger()


@dataclass(frozen=True)
class _Part:
    """An account and the limits that apply to it."""

    account: Account
    allowed: Allowed
    tenant: str
    of_key: bool

    def wanted(self, amounts: Amounts) -> Amounts:
        """`amounts` with 0 for each kind that this part does not limit."""
        unlimited = {name: 0 for name in ("requests", "tokens", "streams") if getattr(self.allowed, name) is None}
        return replace(amounts, **unlimited)

    async def take(self, amounts: Amounts) -> int:
        """As `Account.take`. Raises: Problem if a limit is reached; StoreUnavailable."""
        try:
            return await self.account.take(amounts, self.allowed)
        except LimitMet as met:
            raise too_many(met, self.tenant, of_key=self.of_key) from None


@dataclass(frozen=True)
class _Taken:
    part: _Part
    slot: int
    amounts: Amounts


class Limiter:
    """Limits of all requests of this gateway. `run` must be running."""

    def __init__(self, bus: Bus, settings: GatewaySettings) -> None:
        self._bus = bus
        self._gateway = settings.replica
        self._defaults: dict[str, int | None] = {name: getattr(settings, name) for names in NAMES.values() for name in names}
        self._accounts: dict[str, Account] = {}
        self.terms = Terms(bus)

    @property
    def exchanges(self) -> int:
        """Number of changes of shared entries so far."""
        return sum(account.exchanges for account in self._accounts.values())

    async def run(self) -> None:
        """Report changes until cancelled; then report the last usage."""
        try:
            while True:
                await asyncio.sleep(UPKEEP_S)
                for name, account in list(self._accounts.items()):
                    account.upkeep()
                    if account.is_idle:
                        del self._accounts[name]
        finally:
            accounts = [account.close() for account in self._accounts.values()]
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.gather(*accounts, return_exceptions=True)

    async def count_request(self, caller: Caller, tenant: str, noted: Noted, *, reads: bool) -> None:
        """Count an HTTP request. Raises: Problem.

        `reads`: the request only reads. It is then answered uncounted while usage is unknown, as it costs only a question to the scheduler.
        """
        parts = await self._parts(caller, tenant)
        try:
            await self._take(parts, Amounts(requests=1))
        except StoreUnavailable:
            if not reads:
                raise store_unavailable() from None
        finally:
            noted(_tightest(parts))

    async def check_spending(self, tenant: str) -> TermsAnswer | None:
        """The tenant's terms. Raises: Problem if a budget is used up."""
        terms = await self.terms.of(tenant)
        if terms is not None and terms.spent:
            raise budget_spent(terms.spent[0])
        return terms

    async def check_sampling(self, tenant: str, *, exists: bool) -> TermsAnswer | None:
        """The tenant's terms, as `check_spending`, for a request to a model. It does not create the tenant, as a first task does.

        `exists`: whether a key or a task proves that the tenant exists. Raises: Unavailable if neither does and no scheduler answers.
        """
        terms = await self.check_spending(tenant)
        if terms is None and not exists:
            raise Unavailable(f"no scheduler answers whether there is a tenant '{tenant}'")
        if terms is not None and not terms.is_known:
            raise no_tenant(tenant)
        return terms

    async def bounded(
        self, deltas: AsyncGenerator[Numbered], choices: Sequence[Choice], caller: Caller, tenant: str, noted: Noted
    ) -> AsyncGenerator[Numbered]:
        """Yield `deltas` within the limits of tokens and replies, charged when the first is requested. Raises: Problem; as `deltas`."""
        given = [Given() for _ in choices]
        async with aclosing(deltas), self._held(choices, caller, tenant, given, noted) as extend:
            async for number, delta in deltas:
                given[number].add(delta)
                extend()
                yield number, delta

    @asynccontextmanager
    async def _held(
        self, choices: Sequence[Choice], caller: Caller, tenant: str, given: list[Given], noted: Noted
    ) -> AsyncGenerator[Callable[[], None]]:
        """Charge tokens and replies of a request; at the end refund what was not delivered."""
        parts = await self._parts(caller, tenant)
        charged = sum(map(tokens_of, choices))
        try:
            taken = await self._take(parts, Amounts(tokens=charged, streams=len(choices)))
        except StoreUnavailable:
            raise store_unavailable() from None
        finally:
            noted(_tightest(parts))

        def extend() -> None:
            """Charge more if the reply is longer than assumed."""
            nonlocal charged
            while _total(given) > charged:
                charged += ASSUMED_REPLY
                for one in taken:
                    if one.amounts.tokens:
                        one.part.account.correct("tokens", None, ASSUMED_REPLY)

        for one in taken:
            one.part.account.running += 1
        try:
            yield extend
        finally:
            for one in taken:
                one.part.account.running -= 1
                if one.amounts.tokens:
                    one.part.account.correct("tokens", one.slot, _total(given) - charged)
                one.part.account.end(one.amounts.streams)

    async def _parts(self, caller: Caller, tenant: str) -> list[_Part]:
        """Limited accounts of a request, the key's first. An admin key has no limits of its own: its requests count against the tenant."""
        terms = await self.terms.of(tenant)
        limits = self._defaults | (terms.limits if terms is not None else {})
        parts = list[_Part]()
        if caller.key and caller.role != "admin":
            parts.append(_Part(self._account(f"key.{caller.key}"), _allowed(limits, of_key=True), tenant, of_key=True))
        parts.append(_Part(self._account(f"tenant.{tenant}"), _allowed(limits, of_key=False), tenant, of_key=False))
        return [part for part in parts if not part.allowed.is_unlimited]

    def _account(self, name: str) -> Account:
        found = self._accounts.setdefault(name, Account(self._bus, name, self._gateway))
        found.touch()
        return found

    async def _take(self, parts: list[_Part], amounts: Amounts) -> list[_Taken]:
        """Charge all parts, or none. Raises: Problem; StoreUnavailable."""
        taken = list[_Taken]()
        try:
            for part in parts:
                wanted = part.wanted(amounts)
                if wanted != Amounts():
                    taken.append(_Taken(part, await part.take(wanted), wanted))
        except BaseException:
            for one in taken:
                one.part.account.give_back(one.slot, one.amounts)
            raise
        return taken


def _allowed(limits: dict[str, int | None], *, of_key: bool) -> Allowed:
    requests, tokens, streams = (limits.get(NAMES[kind][of_key]) for kind in ("requests", "tokens", "streams"))
    return Allowed(requests, tokens, streams)


def _total(given: list[Given]) -> int:
    return sum((one.prompt or 0) + one.sampled for one in given)


def _tightest(parts: list[_Part]) -> dict[Rate, Standing]:
    """State of each rate limit: that of the key or of the tenant, whichever has the smaller fraction remaining."""
    found: dict[Rate, Standing] = {}
    for rate in RATES:
        of_it = [part.account.standing(rate, limit) for part in parts if (limit := getattr(part.allowed, rate)) is not None]
        if of_it:
            found[rate] = min(of_it, key=lambda one: one.remaining / max(1, one.limit))
    return found


def tokens_of(choice: Choice) -> int:
    return prompt_tokens(choice.prompt) + (choice.sampling.max_tokens or ASSUMED_REPLY)


def prompt_tokens(prompt: Prompt) -> int:
    """Number of prompt tokens: exact for token ids, estimated for text."""
    if prompt.ids is not None:
        return len(prompt.ids)
    chars = len(prompt.text or "") + sum(len(message.content or "") for message in prompt.messages or ())
    chars += sum(len(json.dumps(tool)) for tool in prompt.tools)
    return chars // CHARS_PER_TOKEN + 1


@dataclass
class _Known:
    answer: TermsAnswer | None
    """Terms of the tenant; None: the scheduler has never answered about it."""
    asked_s: float


class Terms:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[TermsAnswer | None]] = {}

    async def of(self, tenant: str) -> TermsAnswer | None:
        """Terms of a tenant; None as long as the scheduler has never answered about it."""
        known = self._known.get(tenant)
        if known is not None and time.monotonic() - known.asked_s < KEPT_S:
            return known.answer
        asking = self._asking.get(tenant)
        if asking is None:
            asking = self._asking[tenant] = asyncio.create_task(self._ask(tenant, known.answer if known else None))
            asking.add_done_callback(lambda _: self._asking.pop(tenant, None))
        return await asyncio.shield(asking)

    async def _ask(self, tenant: str, before: TermsAnswer | None) -> TermsAnswer | None:
        answer = before
        try:
            if self._bus.is_connected:
                answer = (await self._bus.requests.ask(streams.ask(tenant, "terms"), AskTerms(), timeout_s=ANSWER_S)).read(TermsAnswer)
        except MarlaasError as error:  # no scheduler answers
            log.warning("terms_unknown", tenant=tenant, reason=str(error))
        self._known.pop(tenant, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[tenant] = _Known(answer, time.monotonic())
        return answer
