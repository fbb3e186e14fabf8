"""The process that keeps a one-machine stack running: `python -m marlaas.supervisor DATA`, started by `marlaas up`.

It starts NATS, PostgreSQL, the migrations and the services, tier by tier in this order, restarts those that die, writes
stack.json, and on SIGTERM stops everything in reverse order. No child outlives it: if it is killed, the kernel signals each of them.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from common.access.folder import credentials_path
from common.runtime.logs import configure_logs
from marlaas.stack import database_folder, keys, os_processes, servers
from marlaas.stack.preloading import Parent
from marlaas.stack.servers import Command
from marlaas.stack.state_files import Service, Stack, StackError, StackPlan, locked, log_path, write_stack
from marlaas.stack.supervised_process import ProcessSpec, SupervisedProcess, answers_ready

NOT_LOCKED = 3
"""Exit status when another supervisor holds the data directory."""

WRITE_EVERY_S = 1.0
"""Seconds between two attempts to write a state that a full disk refused."""

log = structlog.get_logger()


async def supervise(plan: StackPlan, parents: Sequence[Parent]) -> None:
    """Run the stack until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    await Supervisor(plan, parents).run(stopping)


class Supervisor:
    """Tiers of child processes: a tier starts once the previous one is ready, and stops before it."""

    def __init__(self, plan: StackPlan, parents: Sequence[Parent]) -> None:
        self._plan = plan
        self._parents = parents
        self._started_s = time.time()
        self._is_written = True
        """Whether stack.json has the latest state."""
        turns = sorted({one.turn for one in plan.services})
        services = [[_service(one) for one in plan.services if one.turn == turn] for turn in turns]
        specs = [[_nats(plan)], [_postgres(plan)], [_prepare(plan)] if plan.prepare else [], *services]
        self._tiers = [[SupervisedProcess(spec, plan.data, parents, self._write) for spec in tier] for tier in specs]

    async def run(self, stopping: asyncio.Event) -> None:
        self._write()
        async with asyncio.TaskGroup() as runners:
            writing = runners.create_task(self._write_what_was_refused())
            running: list[list[asyncio.Task[None]]] = []
            for tier in self._tiers:
                running.append([runners.create_task(child.run(), name=child.spec.name) for child in tier])
                if not await _all_settled(tier, stopping):
                    break
            await stopping.wait()
            log.info("stopping")
            for parent in self._parents:
                parent.close()
            for tier, tasks in reversed(list(zip(self._tiers, running, strict=False))):
                for child in tier:
                    child.stop()
                if tasks:
                    await asyncio.wait(tasks)
            writing.cancel()
        log.info("stopped")

    async def _write_what_was_refused(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            if not self._is_written:
                self._write()
                if self._is_written:
                    log.info("state_written", after="the disk has room")

    def _write(self) -> None:
        identity = os_processes.identify(os.getpid())
        assert identity is not None
        plan = self._plan
        stack = Stack(
            supervisor=identity,
            nats_port=plan.nats_port,
            postgres_port=plan.postgres_port,
            nats_url=servers.nats_url(plan.nats_port),
            gateway=plan.gateway,
            operator_key=credentials_path(plan.keys, "operator") if plan.keys else None,
            database_url=servers.database_url(plan.postgres_port, role=servers.READER, passfile=_passfile(plan)),
            started_s=self._started_s,
            components=[child.component for tier in self._tiers for child in tier],
        )
        was_written = self._is_written
        try:
            write_stack(plan.data, stack)
            self._is_written = True
        except OSError as error:  # the processes continue, and are restarted if they die
            self._is_written = False
            if was_written:
                log.error("state_not_written", error=servers.full_disk(plan.data) or f"{plan.data / 'stack.json'}: {error.strerror}")


async def _all_settled(tier: list[SupervisedProcess], stopping: asyncio.Event) -> bool:
    """Whether every child became ready; False if the stack is to stop first."""
    settled = asyncio.gather(*(child.settled.wait() for child in tier))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({settled, stopped}, return_when=asyncio.FIRST_COMPLETED)
    settled.cancel()
    stopped.cancel()
    with suppress(asyncio.CancelledError):
        await settled
    return not stopping.is_set()


def _nats(plan: StackPlan) -> ProcessSpec:
    async def is_ready(_: int) -> bool:
        return await servers.has_jetstream(plan.nats_port) is True

    disk = servers.NatsDisk(plan.data / "nats")

    async def is_well() -> bool:
        """Health of NATS: False if JetStream is off, or refuses writes although the disk has room; both last until a restart."""
        return await servers.has_jetstream(plan.nats_port) is not False and not disk.has_recovered()

    def command() -> Command:
        accounts = ""
        if plan.keys is not None:
            accounts = keys.prepared(plan.keys, plan.data / "nats", plan.deployment)
        return servers.nats_command(plan.data / "nats", plan.nats_port, accounts=accounts, log=log_path(plan.data, "nats"))

    return ProcessSpec("nats", command, is_ready, is_well)


def _postgres(plan: StackPlan) -> ProcessSpec:
    async def is_ready(_: int) -> bool:
        if not servers.is_listening(plan.postgres_port):
            return False
        await asyncio.to_thread(servers.create_database, plan.postgres_port, passfile=_passfile(plan))
        return True

    return ProcessSpec("postgres", lambda: servers.postgres_command(plan.data / "postgres", plan.postgres_port), is_ready, grace_s=60)


def _passfile(plan: StackPlan) -> Path:
    return database_folder.passfile(plan.data / "postgres")


def _prepare(plan: StackPlan) -> ProcessSpec:
    async def never(_: int) -> bool:
        return False

    command = Command("migrations", plan.prepare, plan.prepare_env, imports=plan.prepare_imports)
    return ProcessSpec("migrations", lambda: command, never, until_done=True)


def _service(service: Service) -> ProcessSpec:
    command = Command(service.name, service.argv, service.env, leaves=service.leaves, imports=service.imports)
    return ProcessSpec(service.name, lambda: command, answers_ready)


def main(data: Path) -> None:
    plan = StackPlan.model_validate_json((data / "plan.json").read_bytes())
    parents: list[Parent] = []
    for modules in plan.parents:
        parents.append(Parent(modules, parents))
    configure_logs("supervisor", "supervisor", "info")
    try:
        with locked(plan.data):
            asyncio.run(supervise(plan, parents))
    except StackError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_LOCKED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
