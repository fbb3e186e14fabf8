"""Sandboxes for the tests: which can be had here, and the loud line about those that cannot."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from env_svc.sandboxes.bubblewrap import BubblewrapSandbox
from env_svc.sandboxes.confined import ConfinedSandbox
from env_svc.sandboxes.current import use
from env_svc.sandboxes.docker import DockerSandbox
from env_svc.sandboxes.monty import MontySandbox
from env_svc.sandboxes.sandbox import MIB, Bounds, RunResult, Sandbox

KINDS = ("monty", "bubblewrap", "docker", "namespaces", "landlock")
"""The last two are those of the sandbox `confined`."""
CPYTHON = "namespaces"
"""One that runs CPython, for tests of what no sandbox makes a difference to."""
DOCKER_URL = "unix:///var/run/docker.sock"
IMAGE = "python:3.11-slim"
BOUNDS = Bounds(time_s=60.0, memory_bytes=128 * MIB, output_bytes=4096, processes=8)


def sandbox_of(kind: str, *, warm: int = 1) -> Sandbox:
    """Not started. Skips where it cannot be had; where COMPOSE_TEST says that containers are tested, that is a failure."""
    reason = _why_not(kind)
    if reason is not None and os.environ.get("COMPOSE_TEST"):
        pytest.fail(f"COMPOSE_TEST is set, but {reason}")
    if reason is not None:
        pytest.skip(f"THE SANDBOX {kind.upper()} IS NOT TESTED: {reason}")
    match kind:
        case "monty":
            return MontySandbox(4)
        case "bubblewrap":
            return BubblewrapSandbox(4)
        case "namespaces" | "landlock":
            return ConfinedSandbox(4, kind)
        case _:
            return DockerSandbox(DOCKER_URL, IMAGE, runs=4, warm=warm)


@asynccontextmanager
async def in_use(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """Start the sandbox, which environments and tools use until the block ends."""
    await sandbox.start()
    use(sandbox)
    try:
        yield sandbox
    finally:
        use(None)
        await sandbox.close()


async def still_works(sandbox: Sandbox) -> bool:
    return await sandbox.run("print(6 * 7)", BOUNDS) == RunResult("42\n")


def _why_not(kind: str) -> str | None:
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return "there is no `bwrap` here: install the package bubblewrap"
    if kind == "docker" and (shutil.which("docker") is None or _failed("docker", "info")):
        return "no Docker engine answers here"
    if kind == "docker" and _failed("docker", "image", "inspect", IMAGE):
        return f"there is no image {IMAGE}"
    return None


def _failed(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode != 0
