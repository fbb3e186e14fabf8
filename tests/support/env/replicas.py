"""Replicas of the environment service as processes."""

import os
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from common import streams
from common.bus import Bus
from common.messages import (
    ReplicaReport,
)
from tests.support.keyed import Keyed
from tests.support.services import service_process
from tests.support.waiting import eventually


def replica(keyed: Keyed, log: Path, **settings: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    own = {f"MARLAAS_ENV_{name.upper()}": value for name, value in settings.items()}
    at = {"MARLAAS_NATS_URL": keyed.url, "MARLAAS_NATS_CREDS": str(keyed.keys.credentials("env"))}
    return service_process("env_svc", {**os.environ, **at, "MARLAAS_REPLICA": "env-1", **own}, log)


def processes_of(parent: int) -> list[int]:
    """Every process below `parent`: the fork server, multiprocessing's tracker and the workers."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    children = [child for child, its_parent in parents.items() if its_parent == parent]
    return children + [below for child in children for below in processes_of(child)]


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ready(bus: Bus) -> ReplicaReport:
    await eventually(lambda: bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport))
    return (await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport))[0]
