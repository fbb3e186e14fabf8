"""The Python SDK: submit tasks, follow them, fetch their adapters.

    async with Client.connect("nats://127.0.0.1:4222") as client:
        task = await client.submit(tomllib.loads(Path("task.toml").read_text()))
        async for event in client.watch(task):
            print(event.event, event.data)
        await client.pull(task, Path("adapter"))

`marlaas.sync.connect` gives the same without asyncio. The address is NATS's, or a gateway's: `https://host`, with `key`. Over both, the
client publishes jobs, listens to events, and asks for everything else (docs/asking.md).
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import JsonValue

from common.bus import NO_FILES, Bus, TlsFiles, objection_to_address
from common.client_api.asking import PATIENCE_S, Door, answer_to_request
from common.client_api.deployment import Accelerators
from common.client_api.errors import ClientError, NoAnswer, TaskRejected, UnknownTask, WrongId, check_id
from common.client_api.protocol import AnyDoor, Verb
from common.client_api.tenancy.aliases import Aliases
from common.client_api.tenancy.files import Files
from common.client_api.tenancy.packages import Packages
from common.client_api.tenancy.tenants import Billing, delete_tenant, set_tenant
from common.client_api.tenancy.webhooks import Webhooks
from common.client_api.training.download import Pruned, Stored, download_adapter, make_way
from common.client_api.training.following import follow
from common.client_api.training.jobs import control, delete_task, preview, resend, submit
from common.client_api.training.progress import Failure, read_failure
from common.messages import (
    AdapterRef,
    Event,
    PruneTasks,
    SetTenant,
    TaskStatus,
)
from common.spec import TaskSpec, new_task_id
from common.task_states import ENDED
from marlaas.over_http.address import EXAMPLE, is_http
from marlaas.over_http.door import entered
from marlaas.preview import Preview
from marlaas.reading import Reader

__all__ = [
    "DEFAULT_URL", "Client", "ClientError", "Failure", "NoAnswer", "Preview", "Pruned", "Stored", "TaskRejected", "UnknownTask", "WrongId",
    "check_id", "make_way", "new_task_id",
]  # fmt: skip

DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""Maximum seconds until a task is accepted or rejected; the environment is built once before the answer."""
DELETE_TIMEOUT_S = 900.0
"""Maximum seconds until a task is deleted. Deletion takes about 1 s per 100,000 trajectories, and the time of NATS for the task's blobs."""


class Client(Reader):
    """One user's connection; create it with `connect`."""

    def __init__(self, door: AnyDoor) -> None:
        super().__init__(door)
        self.billing = Billing(door)
        """Invoices, prices and budgets."""
        self.accelerators = Accelerators(door)
        """Accelerators that several pools share."""
        self.aliases = Aliases(door)
        """A tenant's names for versions of its tasks."""
        self.webhooks = Webhooks(door)
        """Addresses of a tenant that receive messages about ends of tasks and budgets."""
        self.packages = Packages(door)
        """A tenant's own environments."""
        self.files = Files(door)
        """A tenant's files: rows to train on."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str = DEFAULT_URL,
        tenant: str | None = None,
        *,
        creds: Path | None = None,
        key: str | None = None,
        insecure: bool = False,
        tls: TlsFiles = NO_FILES,
        timeout_s: float = CONNECT_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> AsyncGenerator["Client"]:
        """Connect. `tenant`: tenant whose tasks are read; default: the key's tenant, or all for the operator. `creds`: file with a key, for
        NATS. `key`: text of a key, for a gateway. `insecure`: the key may be used without TLS beyond loopback. `tls`: files with
        certificates. `patience_s`: seconds for which requests are retried while no scheduler answers.

        Raises: ClientError if `url` is invalid, or a gateway refuses the key; NoAnswer if NATS or the gateway is unavailable;
        Fatal if NATS refuses the credentials, or a certificate's file cannot be used.
        """
        if is_http(url):
            if creds is not None:
                raise ClientError("a file with a key is for NATS; a gateway takes key='mk-…', or MARLAAS_KEY on the command line")
            limits = {"timeout_s": timeout_s, "patience_s": patience_s}
            async with entered(url, tenant, key=key, insecure=insecure, tls=tls, **limits) as door:
                yield cls(door)
            return
        if objection := objection_to_address(url):
            raise ClientError(f"{objection}; that of a gateway looks like {EXAMPLE}")
        if key is not None:
            raise ClientError("a key mk-… is for a gateway, https://…; NATS takes creds=FILE, or --creds FILE on the command line")
        try:
            async with asyncio.timeout(timeout_s):
                bus = await Bus.connect(url, "client", creds=creds, insecure=insecure, tls=tls)
        except TimeoutError:
            raise NoAnswer(f"NATS does not answer at {_shown(url)}; is the stack running?") from None
        async with bus:
            of_key = bus.key.tenant if bus.key is not None and bus.key.role != "admin" else None
            yield cls(Door(bus, url, tenant or of_key, patience_s=patience_s))

    # --------------------------------------------------------------------------------------------------------- requests

    async def submit(self, spec: TaskSpec | dict[str, JsonValue], task: str | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Submit a task and wait until it is accepted; returns its id. With a given id, resubmitting is harmless.

        Fields that `spec` omits, or never set, take the pool's defaults.
        Raises: WrongId; TaskRejected with the reasons; NoAnswer if the scheduler does not answer.
        """
        return (await self.accepted(spec, task, timeout_s=timeout_s)).task

    async def accepted(self, spec: TaskSpec | dict[str, JsonValue], task: str | None, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Event:
        """As `submit`; returns the task's event `accepted`."""
        return await submit(self._door, spec, task, timeout_s=timeout_s)

    async def preview(self, spec: TaskSpec | dict[str, JsonValue], *, timeout_s: float = ANSWER_TIMEOUT_S) -> Preview:
        """Outcome of `submit`, without submitting. Raises: TaskRejected if a field is invalid; NoAnswer."""
        return Preview.of(await preview(self._door, spec, timeout_s=timeout_s))

    async def cancel(self, task: str, reason: str = "") -> None:
        """End a task; trained versions are kept."""
        await self._control("cancel", task, reason)

    async def pause(self, task: str, reason: str = "") -> None:
        """Admit no new work of a task; work in flight finishes."""
        await self._control("pause", task, reason)

    async def resume(self, task: str, reason: str = "") -> None:
        await self._control("resume", task, reason)

    async def delete(self, task: str, *, timeout_s: float = DELETE_TIMEOUT_S) -> int:
        """Delete a task that has ended: adapters, checkpoints, messages and rows; its ledger is kept. Returns the bytes freed.

        Adapters from which other tasks started are kept until those tasks are deleted too.
        Raises: WrongId; UnknownTask; ClientError if it has not ended, or was deleted already; NoAnswer.
        """
        try:
            status = await self.status(task)
        except UnknownTask:
            if await self._was_deleted(task):
                raise ClientError(f"task {task} was deleted already; only what it consumed is kept") from None
            raise
        return await delete_task(self._door, status, timeout_s=timeout_s)

    async def prune(
        self, tenant: str | None = None, *, ended_before_s: float | None = None, dry_run: bool = False, timeout_s: float = DELETE_TIMEOUT_S
    ) -> list[Pruned]:
        """Delete superseded blobs of one tenant's tasks, or of all visible tenants'; the scheduler also does so periodically.

        `ended_before_s`: delete also tasks that ended more seconds ago. `dry_run`: report only.

        Raises: NoAnswer.
        """
        tenant = tenant or self._door.tenant
        tenants = [tenant] if tenant is not None else sorted({status.tenant for status in await self.tasks()})
        found: list[Pruned] = []
        for one in tenants:
            request = secrets.token_hex(6)
            prune = PruneTasks(tenant=one, request=request, ended_before_s=ended_before_s, dry_run=dry_run)
            found.append(Pruned.of(one, await answer_to_request(self._door, "prune", one, prune, request, timeout_s)))
        return found

    async def resend(self, letter: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Resend the message of a dead letter. Safe to repeat: a message sent twice takes effect once.

        Raises: ClientError if there is no such letter, or its message is no longer needed; NoAnswer.
        """
        await resend(self._door, await read_failure(self._door, letter), timeout_s=timeout_s)

    async def set_tenant(self, request: SetTenant, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, JsonValue]:
        """Change a tenant's weight and limits; returns all values, and their use. Raises: ClientError for an unknown tenant; NoAnswer."""
        return await set_tenant(self._door, request, timeout_s)

    async def delete_tenant(self, tenant: str, *, timeout_s: float = DELETE_TIMEOUT_S) -> dict[str, JsonValue]:
        """Delete a tenant's data except its usage records; returns counts. Raises: ClientError for an unknown tenant; NoAnswer."""
        return await delete_tenant(self._door, tenant, timeout_s)

    # -------------------------------------------------------------------------------------------------------- following

    async def watch(self, *tasks: str, from_now: bool = False) -> AsyncGenerator[Event]:
        """Past and future events of these tasks, in order; ends when all of them have ended.

        `from_now`: future events only. Without tasks: future events of every task, without end.
        Raises: WrongId; NoAnswer if no scheduler answers at the start. If none answers later, the client waits.
        """
        for task in tasks:
            check_id(task)
        async for event in follow(self._door, tasks, from_now=from_now):
            yield event

    async def wait(self, task: str) -> TaskStatus:
        """Wait until the task has ended; returns its status."""
        status = await self.status(task)
        if status.state not in ENDED:
            async for _ in self.watch(task, from_now=True):
                pass
            status = await self.status(task)
        return status

    async def pull(self, task: str, folder: Path | Callable[[AdapterRef], Path], version: int | None = None) -> AdapterRef:
        """Write one version of a task's adapter (None: the latest) as a PEFT folder. `folder`: path, or a function that returns it.

        Raises: UnknownTask; ClientError if there is no such version, or the folder is not empty; NoAnswer.
        """
        await self.status(task)
        return await download_adapter(self._door, task, folder, version)

    async def _control(self, verb: Verb, task: str, reason: str) -> None:
        await control(self._door, verb, await self.status(task), reason)

    async def _was_deleted(self, task: str) -> bool:
        return "deleted" in [event.event async for event in self._door.events_after(task, 0)]


def _shown(url: str) -> str:
    """The URL without its password."""
    return url.rpartition("@")[2]
