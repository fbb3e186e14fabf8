"""The SDK without asyncio, for notebooks and scripts.

with connect("nats://127.0.0.1:4222") as client:
    task = client.submit({"name": "gcd", ...})
    client.wait(task)
    client.pull(task, Path("adapter"))
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from common.bus import NO_FILES, TlsFiles
from common.client_api.tenancy.aliases import Aliases
from common.client_api.tenancy.files import Files
from common.client_api.tenancy.packages import Packages
from common.client_api.tenancy.tenants import Billing
from common.client_api.tenancy.webhooks import Webhooks
from common.messages import Event
from marlaas.client import DEFAULT_URL, Client

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Blocking(Generic[S]):
    """Runs coroutines of `target` on the event loop of the client's thread."""

    def __init__(self, target: S, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _blocking(call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Blocking[S], P], T]:
    """Blocking method that runs `call`, and returns its result or raises its exception."""

    @wraps(call)
    def run(self: _Blocking[S], /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._run(call(self._target, *arguments, **named))

    return run


class SyncBilling(_Blocking[Billing]):
    """Blocking form of `Client.billing`."""

    invoice = _blocking(Billing.invoice)
    prices = _blocking(Billing.prices)
    set_price = _blocking(Billing.set_price)
    budgets = _blocking(Billing.budgets)
    set_budget = _blocking(Billing.set_budget)


class SyncPackages(_Blocking[Packages]):
    """Blocking form of `Client.packages`; an upload calls `waits` in the client's thread."""

    upload = _blocking(Packages.upload)
    all = _blocking(Packages.all)
    find = _blocking(Packages.find)
    delete = _blocking(Packages.delete)


class SyncFiles(_Blocking[Files]):
    """Blocking form of `Client.files`."""

    upload = _blocking(Files.upload)
    all = _blocking(Files.all)
    find = _blocking(Files.find)
    named = _blocking(Files.named)
    fetch = _blocking(Files.fetch)
    delete = _blocking(Files.delete)


class SyncAliases(_Blocking[Aliases]):
    """Blocking form of `Client.aliases`."""

    all = _blocking(Aliases.all)
    set = _blocking(Aliases.set)
    delete = _blocking(Aliases.delete)


class SyncWebhooks(_Blocking[Webhooks]):
    """Blocking form of `Client.webhooks`."""

    all = _blocking(Webhooks.all)
    set = _blocking(Webhooks.set)
    delete = _blocking(Webhooks.delete)


class SyncClient(_Blocking[Client]):
    """Blocking form of `Client`."""

    def __init__(self, target: Client, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(target, loop)
        self.billing = SyncBilling(target.billing, loop)
        self.aliases = SyncAliases(target.aliases, loop)
        self.webhooks = SyncWebhooks(target.webhooks, loop)
        self.packages = SyncPackages(target.packages, loop)
        self.files = SyncFiles(target.files, loop)

    submit = _blocking(Client.submit)
    cancel = _blocking(Client.cancel)
    pause = _blocking(Client.pause)
    resume = _blocking(Client.resume)
    delete = _blocking(Client.delete)
    prune = _blocking(Client.prune)
    stored = _blocking(Client.stored)
    usage = _blocking(Client.usage)
    resend = _blocking(Client.resend)
    failures = _blocking(Client.failures)
    evaluations = _blocking(Client.evaluations)
    compare = _blocking(Client.compare)
    tasks = _blocking(Client.tasks)
    status = _blocking(Client.status)
    why = _blocking(Client.why)
    spec = _blocking(Client.spec)
    steps = _blocking(Client.steps)
    versions = _blocking(Client.versions)
    samples = _blocking(Client.samples)
    replicas = _blocking(Client.replicas)
    troubles = _blocking(Client.troubles)
    wait = _blocking(Client.wait)
    pull = _blocking(Client.pull)

    def watch(self, *tasks: str, from_now: bool = False) -> Iterator[Event]:
        events = aiter(self._target.watch(*tasks, from_now=from_now))
        while (event := self._run(_next(events))) is not None:
            yield event


@contextmanager
def connect(
    url: str = DEFAULT_URL,
    tenant: str | None = None,
    *,
    creds: Path | None = None,
    key: str | None = None,
    insecure: bool = False,
    tls: TlsFiles = NO_FILES,
) -> Generator[SyncClient]:
    """A client whose connection runs in its own thread. Arguments and errors: `Client.connect`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="marlaas-client", daemon=True)
    thread.start()
    connection = Client.connect(url, tenant, creds=creds, key=key, insecure=insecure, tls=tls)
    try:
        client = asyncio.run_coroutine_threadsafe(connection.__aenter__(), loop).result()
        try:
            yield SyncClient(client, loop)
        finally:
            asyncio.run_coroutine_threadsafe(connection.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _next(events: Any) -> Event | None:
    """The next event; None at the end. `Any`: an async generator, whose type lacks `anext`'s protocol."""
    return await anext(events, None)
