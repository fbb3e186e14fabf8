"""Start and shutdown of every service: settings, logs, health, the bus and its tasks.

A service is a function from a `Running` (its inputs) to a coroutine that runs until cancelled. `run_service`
starts it and stops it: SIGTERM or SIGINT cancels it, unfinished messages go back to the queue, exit status 0. `Fatal`
ends it with one log line and exit status 1.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from common.bus import Bus, TlsFiles, is_beyond_loopback, is_loopback, objection_to_address, without_password
from common.errors import Fatal
from common.messages import ReplicaReport
from common.periodic import run_forever
from common.resilience import crashpoints
from common.runtime.health import Health, serve_http
from common.runtime.lives import leaves, living
from common.runtime.logs import configure_logs
from common.runtime.process import collect_rarely
from common.runtime.settings import Settings, describe, read_or_exit
from common.streams import REPLICA_TTL_S, REPLICAS_BUCKET

S = TypeVar("S", bound=Settings)
log = structlog.get_logger()


@dataclass(frozen=True)
class Running(Generic[S]):
    """Input of a service: its settings, a connected bus with all streams declared, and its health."""

    settings: S
    bus: Bus
    health: Health


def run_service(
    settings_type: type[S],
    main: Callable[[Running[S]], Awaitable[None]],
    *,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run `main` until a signal or `Fatal`. Never returns; the exit status is 0 or 1 (2 for invalid settings).

    `new_loop`: makes the event loop; None: asyncio's.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.stdout.write(
            f"python -m {settings_type.service.lower()}_svc: its settings are environment variables.\n\n{describe(settings_type)}\n"
        )
        sys.exit(0)
    settings = read_or_exit(settings_type)
    assert isinstance(settings, settings_type)
    if objection := objection_to_exposure(settings):
        sys.exit(_refused(settings, objection))
    configure_logs(settings.service.lower(), settings.replica, settings.log_level)
    crashpoints.arm(settings.crash_point)
    collect_rarely()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        status = runner.run(_run(settings, main))
    sys.exit(status)


def _refused(settings: Settings, objection: str) -> int:
    """Print why the settings are invalid; returns the exit status."""
    sys.stderr.write(f"{settings.service.lower()}: {objection}\n")
    return 2


async def _run(settings: S, main: Callable[[Running[S]], Awaitable[None]]) -> int:
    health = Health()
    server = serve_http(settings.http_host, settings.http_port, health)
    log.info("starting", http_port=server.server_address[1])
    runner = asyncio.ensure_future(_connected(settings, health, main))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, runner.cancel)
    try:
        await runner
        return 0
    except asyncio.CancelledError:
        log.info("stopped")
        return 0
    except Exception as error:
        return _report(error)
    finally:
        server.shutdown()


async def _connected(settings: S, health: Health, main: Callable[[Running[S]], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as runners:
        beating = runners.create_task(health.beat())
        async with await connect_bus(settings, f"{settings.service.lower()}-{settings.replica}", until_accepted=True) as bus:
            if settings.declares_streams:
                await bus.declare(
                    replicas=settings.nats_replicas,
                    blobs_bytes=settings.nats_blobs_bytes,
                    streams_bytes=settings.nats_streams_bytes,
                )
            else:
                await bus.wait_until_declared()
            async with living(settings, bus, health), asyncio.TaskGroup() as working:
                others = [working.create_task(bus.wait_fatal()), working.create_task(bus.clock.sync())]
                await main(Running(settings, bus, health))
                for other in others:
                    other.cancel()
            beating.cancel()


async def connect_bus(settings: Settings, name: str, *, until_accepted: bool = False) -> Bus:
    """A bus connection with this process's key. Raises: as `Bus.connect`."""
    tls = TlsFiles(settings.nats_ca, settings.nats_cert, settings.nats_key)
    creds, insecure = settings.nats_creds, settings.nats_insecure
    return await Bus.connect(settings.nats_url, name, creds=creds, insecure=insecure, tls=tls, until_accepted=until_accepted)


def _report(error: BaseException) -> int:
    """Log why the process ends: one line for Fatal, a traceback for a bug. Returns the exit status."""
    causes = leaves(error)
    fatal = next((cause for cause in causes if isinstance(cause, Fatal)), None)
    if fatal is not None:
        log.error("fatal", error=str(fatal))
    else:
        log.error("crashed", exc_info=causes[0])
    return 1


async def report_replica(bus: Bus, report: Callable[[], ReplicaReport]) -> None:
    """Keep this replica's entry in the `replicas` bucket fresh; it expires by itself when the process dies."""
    key = f"{report().service}.{report().replica}"

    def counted() -> ReplicaReport:
        return report().model_copy(update={"forbidden": bus.forbidden})

    try:
        await run_forever(lambda: bus.kv.put(REPLICAS_BUCKET, key, counted()), REPLICA_TTL_S / 4, "replica_report_failed")
    finally:
        await asyncio.shield(bus.kv.delete(REPLICAS_BUCKET, key))


def objection_to_exposure(settings: Settings) -> str | None:
    """Reason why a service must not start with these settings, and the correction; None if it may.

    A start is refused if it would admit unauthenticated clients, or show them a tenant's data. An address on loopback is reached from
    this machine alone, and needs no key; beyond loopback, NATS must require one.
    """
    if settings.nats_creds is not None or objection_to_address(settings.nats_url) is not None:
        return None  # the bus reports an invalid address
    if is_beyond_loopback(settings.nats_url):
        return (
            f"MARLAAS_NATS_URL: {without_password(settings.nats_url)} is not on this machine, and needs a key; name its file in"
            " MARLAAS_NATS_CREDS (docs/tenancy.md)"
        )
    for field in ("http_host", *settings.public_hosts):
        host = getattr(settings, field)
        if not is_loopback(host):
            return (
                f"{settings.variable(field)}: {host} is reached from other machines, which needs a key for NATS; name its file in"
                " MARLAAS_NATS_CREDS (docs/tenancy.md), or listen on 127.0.0.1"
            )
    return None
