"""The SDK without asyncio, for notebooks and scripts.

with connect("nats://127.0.0.1:4222") as client:
    task = client.submit({"name": "gcd", ...})
    client.wait(task)
    client.pull(task, Path("adapter"))
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import JsonValue

from common.bus import NO_FILES, TlsFiles
from common.client_api.tenancy.aliases import Version
from common.client_api.tenancy.webhooks import WebhookSet
from common.messages import (
    WEBHOOK_EVENTS,
    AdapterRef,
    AliasOf,
    BudgetOf,
    Event,
    InvoiceLine,
    OwnPackage,
    PriceOf,
    ReplicasOf,
    SamplesAnswer,
    SetPrice,
    StepOf,
    StoredFile,
    TaskStatus,
    TroubleOf,
    UsageAnswer,
    VersionsAnswer,
    WebhookEvent,
    WebhookOf,
    WhyAnswer,
)
from common.messages.asks import TaskState
from common.messages.tenancy.billing import Period, Unit
from common.spec import TaskSpec
from marlaas.client import DEFAULT_URL, Client, Failure, Pruned, Stored
from marlaas.comparison import Comparison, Evaluated

T = TypeVar("T")


class _Blocking:
    """Runs calls on the loop of the client's thread."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class SyncBilling(_Blocking):
    """Blocking form of `Client.billing`."""

    def invoice(self, first: date | None = None, last: date | None = None) -> list[InvoiceLine]:
        return self._run(self._client.billing.invoice(first, last))

    def prices(self) -> list[PriceOf]:
        return self._run(self._client.billing.prices())

    def set_price(self, request: SetPrice) -> None:
        self._run(self._client.billing.set_price(request))

    def budgets(self) -> list[BudgetOf]:
        return self._run(self._client.billing.budgets())

    def set_budget(self, tenant: str, period: Period, unit: Unit, amount: Decimal | None) -> None:
        self._run(self._client.billing.set_budget(tenant, period, unit, amount))


class SyncPackages(_Blocking):
    """Blocking form of `Client.packages`."""

    def upload(self, wheel: bytes, tenant: str | None = None, *, waits: Callable[[str], None] = lambda _: None) -> dict[str, JsonValue]:
        """As the other; `waits` is called in the client's thread."""
        return self._run(self._client.packages.upload(wheel, tenant, waits=waits))

    def all(self) -> list[OwnPackage]:
        return self._run(self._client.packages.all())

    def find(self, named: str) -> OwnPackage:
        return self._run(self._client.packages.find(named))

    def delete(self, package: OwnPackage) -> int:
        return self._run(self._client.packages.delete(package))


class SyncFiles(_Blocking):
    """Blocking form of `Client.files`."""

    def upload(self, file: IO[bytes], name: str, tenant: str | None = None) -> StoredFile:
        return self._run(self._client.files.upload(file, name, tenant))

    def all(self, *, tenant: str | None = None) -> list[StoredFile]:
        return self._run(self._client.files.all(tenant=tenant))

    def find(self, file: str, tenant: str | None = None) -> StoredFile:
        return self._run(self._client.files.find(file, tenant))

    def named(self, named: str, tenant: str | None = None) -> StoredFile:
        return self._run(self._client.files.named(named, tenant))

    def fetch(self, file: StoredFile, to: Path) -> None:
        self._run(self._client.files.fetch(file, to))

    def delete(self, file: StoredFile) -> int:
        return self._run(self._client.files.delete(file))


class SyncAliases(_Blocking):
    """Blocking form of `Client.aliases`."""

    def all(self, *, tenant: str | None = None) -> list[AliasOf]:
        return self._run(self._client.aliases.all(tenant=tenant))

    def set(self, name: str, task: str, version: Version = "latest", *, tenant: str | None = None, expected: str | None = None) -> AliasOf:
        return self._run(self._client.aliases.set(name, task, version, tenant=tenant, expected=expected))

    def delete(self, name: str, *, tenant: str | None = None, expected: str | None = None) -> AliasOf:
        return self._run(self._client.aliases.delete(name, tenant=tenant, expected=expected))


class SyncWebhooks(_Blocking):
    """Blocking form of `Client.webhooks`."""

    def all(self, name: str | None = None, *, tenant: str | None = None) -> list[WebhookOf]:
        return self._run(self._client.webhooks.all(name, tenant=tenant))

    def set(
        self,
        name: str,
        url: str,
        events: Sequence[WebhookEvent] = WEBHOOK_EVENTS,
        *,
        tenant: str | None = None,
        replace_secret: bool = False,
    ) -> WebhookSet:
        return self._run(self._client.webhooks.set(name, url, events, tenant=tenant, replace_secret=replace_secret))

    def delete(self, name: str, *, tenant: str | None = None) -> None:
        self._run(self._client.webhooks.delete(name, tenant=tenant))


class SyncClient(_Blocking):
    """Blocking form of `Client`."""

    @property
    def billing(self) -> SyncBilling:
        return SyncBilling(self._client, self._loop)

    @property
    def aliases(self) -> SyncAliases:
        return SyncAliases(self._client, self._loop)

    @property
    def webhooks(self) -> SyncWebhooks:
        return SyncWebhooks(self._client, self._loop)

    @property
    def packages(self) -> SyncPackages:
        return SyncPackages(self._client, self._loop)

    @property
    def files(self) -> SyncFiles:
        return SyncFiles(self._client, self._loop)

    def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None = None) -> str:
        return self._run(self._client.submit(spec, task))

    def cancel(self, task: str, reason: str = "") -> None:
        self._run(self._client.cancel(task, reason))

    def pause(self, task: str, reason: str = "") -> None:
        self._run(self._client.pause(task, reason))

    def resume(self, task: str, reason: str = "") -> None:
        self._run(self._client.resume(task, reason))

    def delete(self, task: str) -> int:
        return self._run(self._client.delete(task))

    def prune(self, tenant: str | None = None, *, ended_before_s: float | None = None, dry_run: bool = False) -> list[Pruned]:
        return self._run(self._client.prune(tenant, ended_before_s=ended_before_s, dry_run=dry_run))

    def stored(self) -> dict[str, Stored]:
        return self._run(self._client.stored())

    def usage(self) -> UsageAnswer:
        return self._run(self._client.usage())

    def resend(self, letter: int) -> None:
        self._run(self._client.resend(letter))

    def failures(self, task: str | None = None) -> list[Failure]:
        return self._run(self._client.failures(task))

    def evaluations(self, task: str) -> Evaluated:
        return self._run(self._client.evaluations(task))

    def compare(self, first: str, second: str, *, protocol: str | None = None, version: str = "last") -> Comparison:
        return self._run(self._client.compare(first, second, protocol=protocol, version=version))

    def tasks(
        self, *, states: Sequence[TaskState] = (), pool: str | None = None, name: str | None = None, text: str | None = None
    ) -> list[TaskStatus]:
        return self._run(self._client.tasks(states=states, pool=pool, name=name, text=text))

    def status(self, task: str) -> TaskStatus:
        return self._run(self._client.status(task))

    def why(self, task: str) -> WhyAnswer:
        return self._run(self._client.why(task))

    def spec(self, task: str) -> dict[str, JsonValue]:
        return self._run(self._client.spec(task))

    def steps(self, task: str, after: int = 0) -> list[StepOf]:
        return self._run(self._client.steps(task, after))

    def versions(self, task: str) -> VersionsAnswer:
        return self._run(self._client.versions(task))

    def samples(self, task: str, step: int | None = None) -> SamplesAnswer:
        return self._run(self._client.samples(task, step))

    def replicas(self) -> list[ReplicasOf]:
        return self._run(self._client.replicas())

    def troubles(self) -> list[TroubleOf]:
        return self._run(self._client.troubles())

    def wait(self, task: str) -> TaskStatus:
        return self._run(self._client.wait(task))

    def watch(self, *tasks: str, from_now: bool = False) -> Iterator[Event]:
        events = aiter(self._client.watch(*tasks, from_now=from_now))
        while (event := self._run(_next(events))) is not None:
            yield event

    def pull(self, task: str, folder: Path, version: int | None = None) -> AdapterRef:
        return self._run(self._client.pull(task, folder, version))


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
    """A client whose connection lives in its own thread. Arguments and errors: `Client.connect`."""
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
    """`Any`: an async generator of events, whose type says nothing of `anext`."""
    return await anext(events, None)
